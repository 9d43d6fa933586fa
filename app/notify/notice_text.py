"""A notice as short plain text, and its parts for those that format them otherwise."""

from __future__ import annotations

import time

from kvitals.app.notify.notice import Change, Notice

CHANGES: dict[Change, str] = {
    "new": "",
    "cause": "cause found",
    "worse": "now a page",
    "more": "more alerts",
    "again": "goes on",
    "joined": "joined another incident",
    "resolved": "resolved",
}


def headline(notice: Notice) -> str:
    """Whose trouble it is and which."""
    said = CHANGES[notice.change]
    return f"{said + ': ' if said else ''}{notice.title} ({notice.where})"


def lines(notice: Notice) -> list[str]:
    """What stands below the headline, a sentence or two each."""
    if notice.change == "joined":
        return [f"It goes on in incident {notice.joined}."]
    if notice.status == "resolved":
        least = "at least " if notice.began_at_least else ""
        lasted = f"{least}{duration_text(notice.at - notice.began)}"
        began = start_text(notice.began, notice.at, at_least=notice.began_at_least)
        return [f"It lasted {lasted}, from {began} to {moment(notice.at, notice.at)}."]
    found = [notice.verdict] if notice.verdict else []
    if notice.finding is None:
        found += [f"{one.name}: {one.description or one.summary}" for one in notice.alerts[:3]]
    if notice.explains:
        found.append(f"Explains {', '.join(notice.explains[:4])}.")
    return found


def action(notice: Notice) -> str:
    """The first lever, as one line; empty where there is none."""
    if not notice.actions:
        return ""
    first = notice.actions[0]
    return f"Do first: {first.title}" + (f": {first.setting}" if first.setting else "")


def foot(notice: Notice) -> str:
    """Since when, how sure, and who says so. An alert waits before it fires: its finding began earlier."""
    cause = notice.finding
    said = []
    if cause is not None and cause.since is not None:
        said.append(f"{cause.code} since {start_text(cause.since, notice.at, at_least=cause.since_at_least)}")
    said.append(f"alert since {start_text(notice.began, notice.at, at_least=notice.began_at_least)}")
    if notice.confidence:
        said.append(f"confidence {notice.confidence}")
    said.append(notice.judged)
    codes = [one.code or one.name for one in notice.alerts]
    said.append(f"alerts: {', '.join(dict.fromkeys(codes))}" + (f" and {n} more" if (n := notice.not_listed) else ""))
    return " · ".join(said)


def start_text(t: float, at: float, *, at_least: bool) -> str:
    """A start for a message of a moment. at_least: it was not observed."""
    return moment(t, at) + (" or earlier" if at_least else "")


def moment(t: float, at: float) -> str:
    """A moment for a message of another one: with its date where that is another day."""
    day, other = (time.strftime("%Y-%m-%d ", time.gmtime(one)) for one in (t, at))
    return ("" if day == other else day) + time.strftime("%H:%M:%S UTC", time.gmtime(t))


def duration_text(seconds: float) -> str:
    """`42 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
