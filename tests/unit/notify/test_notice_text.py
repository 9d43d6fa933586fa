"""The words of a message."""

from __future__ import annotations

import zlib
from pathlib import Path

from msgspec.structs import replace

from kvitals.app.notify.notice import VERSION, Notice, NoticeAlert
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


def test_added_fields_of_a_notice_change_its_version() -> None:
    """`docs/notify.md` names the fields that each version added. Add a version there for a new field."""
    fields = zlib.crc32(" ".join((*Notice.__struct_fields__, "/", *NoticeAlert.__struct_fields__)).encode())
    assert (VERSION, fields) == ("1.2", 3331057332)
    assert f"`version` is {VERSION}." in (Path(__file__).parents[3] / "docs" / "notify.md").read_text(encoding="utf-8")
