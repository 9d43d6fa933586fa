"""Markdown of trackers and mails (CommonMark, GitHub, GitLab): tables, paragraphs and code spans."""

from __future__ import annotations

import re

from kvitals.app.escaping import plain

JOINER = "\u2060"  # invisible, no width, no break
_SPECIAL = re.compile(r"([\\`*{}\[\]&|~$])|(?<![^\W_])(_)|(_)(?![^\W_])")
_START = re.compile(r"^(?:#|[-=]+\s*$|[-+](?=\s|$)|[0-9]+[.)](?=\s|$))")  # a heading, a line, a list
_MENTION = re.compile(r"([@#!])(?=\w)")  # of people, issues and merge requests
_WWW = re.compile(r"\b(www)\.", re.IGNORECASE)


def text(value: str) -> str:
    """Any text on one line, shown as itself: no link, no image, no mention, no list, no end of a table's cell."""
    found = plain.line(value)
    found = found.replace("://", f":{JOINER}//")
    found = _WWW.sub(rf"\1{JOINER}.", found)
    found = _MENTION.sub(rf"\1{JOINER}", found)
    found = _SPECIAL.sub(lambda match: f"\\{match[0]}", found).replace("<", "&lt;").replace(">", "&gt;")
    return _START.sub(_not_at_start, found)


def code(value: str) -> str:
    """Any text as a code span on one line, which a table's cell can hold."""
    shown = plain.line(value).replace("|", "¦") or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    return f"{fence} {shown} {fence}" if fence != "`" else f"`{shown}`"


def _not_at_start(match: re.Match[str]) -> str:
    return f"{JOINER}{match[0]}"


def block(value: str) -> str:
    """Lines of any text as a code block, fenced by more backticks than it has."""
    shown = plain.lines(value)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    return f"{fence}text\n{shown}\n{fence}"
