"""Slack's mrkdwn. `Mrkdwn` is text that Slack may interpret: only this module makes it of strangers' text.

Slack interprets `<...>` (links, mentions of people, channels and everybody), pairs of `* _ ~` and of backticks,
`:emoji:`, and addresses in plain text. The first is escaped as Slack documents it. The others have no escape, so a
character in between or one that looks the same takes their place.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import NewType
from urllib.parse import quote

from kvitals.app.escaping import plain

Mrkdwn = NewType("Mrkdwn", str)

JOINER = "\u2060"  # invisible, no width, no break
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_ALIKE = str.maketrans({"*": "∗", "~": "∼", "`": "‵"})
_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")  # between letters it means nothing, and names are copied
_EMOJI = re.compile(r":(?![0-9]{1,2}:)(?=[\w+'-]+:)")  # 12:30:00 is none
_CALLS = re.compile(r"([@#])(?=\w)")
_WWW = re.compile(r"\b(www)\.", re.IGNORECASE)


def text(value: str, most: int = 2000) -> Mrkdwn:
    """Any text on one line, shown as itself, in at most `most` characters as Slack counts them."""
    found = plain.line(value[: 4 * most])
    found = found.replace("://", f":{JOINER}//")
    found = _EMOJI.sub(f":{JOINER}", found)
    found = _CALLS.sub(rf"\1{JOINER}", found)
    found = _WWW.sub(rf"\1{JOINER}.", found)
    found = _fitting(found, most).translate(_ALIKE)
    return Mrkdwn(_UNDERSCORE.sub("‗", found).translate(_ENTITIES))  # an underscore can have come to the end only now


def _fitting(value: str, most: int) -> str:
    """As much of it as has `most` characters once it is escaped, with a mark where some are left out."""
    sizes = list(accumulate(len(_ENTITIES.get(ord(letter), letter)) for letter in value))
    if not sizes or sizes[-1] <= most:
        return value
    return f"{value[: bisect_right(sizes, most - 1)].rstrip()}…"


def bold(value: Mrkdwn) -> Mrkdwn:
    return Mrkdwn(f"*{value}*")


def link(url: str, title: str) -> Mrkdwn:
    """A link; the title alone where the URL is not one of http or https."""
    shown = text(title.replace("|", "¦"), 200)
    if not url.startswith(("http://", "https://")):
        return shown
    return Mrkdwn(f"<{quote(url, safe=_URL)}|{shown}>")


_URL = "%/:=&?~#+!$,;'@()*[]-._"


def join_mrkdwn(separator: str, parts: Iterable[Mrkdwn], most: int) -> Mrkdwn:
    """As many whole parts as there is room for in `most` characters. separator: ours."""
    found = ""
    for part in filter(None, parts):
        longer = f"{found}{separator}{part}" if found else part
        if len(longer) > most:
            break
        found = longer
    return Mrkdwn(found)


def code(value: str) -> Mrkdwn:
    """Any text as a code span on one line: a command that can be copied."""
    return Mrkdwn(f"`{plain.line(value).translate(_NO_BACKTICK).translate(_ENTITIES) or ' '}`")


def block(value: str) -> Mrkdwn:
    """Lines of any text as a code block: nothing inside is interpreted."""
    return Mrkdwn(f"```\n{plain.lines(value).translate(_NO_BACKTICK).translate(_ENTITIES)}\n```")


_NO_BACKTICK = str.maketrans({"`": "‵"})
