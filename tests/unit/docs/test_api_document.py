"""docs/api.md names every path that the agent serves, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

from kvitals.agent.exports.api import build_app
from kvitals.agent.exports.ledger import LedgerApi
from kvitals.agent.exports.requests import Requests
from kvitals.app.notify.intake import PATH
from kvitals.series.window import Window

DOCUMENT = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")


def test_every_path_is_named_and_no_other() -> None:
    requests = Requests(store=cast(Any, None), tails=cast(Any, None), take=lambda _: True)
    app = build_app(
        Window(60, 10),
        {},
        findings=lambda: None,
        ready=lambda: True,
        requests=requests,
        ledger=LedgerApi(lambda: None),
        notes=cast(Any, object()),
        since_change=bytes,
    )
    served = {resource.canonical for resource in app.router.resources()} | {PATH}
    named = set(re.findall(r"`(?:POST )?(/[^`]*)`", DOCUMENT.partition("\nTimes are")[0]))
    assert named == served
