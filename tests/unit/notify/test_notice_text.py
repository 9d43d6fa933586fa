"""The words of a message."""

from __future__ import annotations

from msgspec.structs import replace

from kvitals.app.notify.notice import Notice
from kvitals.app.notify.notice_text import foot
from kvitals.rules.finding import Triage


def test_the_foot_has_the_start_of_the_finding_and_that_of_the_alert(full_cache: Triage) -> None:
    """An alert waits before it fires: "since" was 55 s later in the message than in the terminal."""
    lead = replace(full_cache.causes[0], since=1000.0)
    notice = Notice(
        id="1", incident="1", status="firing", change="new", severity="page", title="", where="", entity={},
        began=1055.0, at=1060.0, judged="diagnosed by the agent", finding=lead,
    )  # fmt: skip
    assert foot(notice).startswith(
        f"{lead.code} since 00:16:40 UTC · alert since 00:17:35 UTC · diagnosed by the agent"
    )
    assert foot(replace(notice, finding=None)).startswith("alert since 00:17:35 UTC · diagnosed by the agent")
