"""How long a message waits before it is sent again."""

from __future__ import annotations

import pytest

from kvitals.app.notify import sending
from kvitals.app.notify.sending import asked_pause, pause


@pytest.mark.parametrize("seconds", ["7", "7.0", "Sat, 21 Nov 2026 05:30:07 GMT"])
def test_a_pause_that_is_asked_for(seconds: str) -> None:
    assert asked_pause({"Retry-After": seconds}, 1795239000.0) == 7.0


@pytest.mark.parametrize("text", ["", "soon", "-3", "1e9", "99999999"])
def test_a_pause_is_bounded(text: str) -> None:
    assert 0 <= asked_pause({"Retry-After": text}, 0.0) <= 3600


def test_pauses_grow_up_to_a_limit() -> None:
    assert all(pause(n, 0.0) <= 1.25 * sending.LAST_RETRY_SECONDS for n in (0, 5, 50, 5000))
    assert pause(0, 40.0) == 40.0
