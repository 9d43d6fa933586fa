"""A client of the API over a small window."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.exports.api_stage import Client, serving


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with serving() as made:
        yield made
