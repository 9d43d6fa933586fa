"""Strangers' text in Markdown, moments and lengths of time."""

from __future__ import annotations

import zoneinfo

import pytest

from kvitals.ui.web.page_text import JOINER, count, inline_code, literal, moment, span


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("plain words, 97 % of 3", "plain words, 97 % of 3"),
        ("a*b_c`d", r"a\*b\_c\`d"),
        ("[x](y)", r"\[x\]\(y\)"),
        ("<b>&amp;", r"\<b\>\&amp;"),
        ("# no\n- heading", r"\# no \- heading"),
        ("1. no list", r"1\. no list"),
        ("$x$", r"\$x\$"),
        (":red[x]", r"\:red\[x\]"),
        ("127.0.0.1:8000/0", r"127\.0\.0\.1\:8000/0"),
        ("14:02:40", r"14\:02\:40"),
        (":smile:", rf"\:{JOINER}smile\:"),
        (":material/home:", rf"\:{JOINER}material/home\:"),
        ("http://x", rf"http\:{JOINER}//x"),
        ("www.x.org", rf"www{JOINER}\.x\.org"),
        ("a@b.c", rf"a{JOINER}\@b\.c"),
        ("x\x00y\u202e", "x\ufffdy\ufffd"),
    ],
)
def test_literal(text: str, markdown: str) -> None:
    assert literal(text) == markdown


@pytest.mark.parametrize(
    ("text", "markdown"),
    [("plain", "`plain`"), ("a`b", "`` a`b ``"), ("``", "``` `` ```"), ("", "` `"), ("a\nb", "`a b`")],
)
def test_inline_code(text: str, markdown: str) -> None:
    assert inline_code(text) == markdown


def test_moments_are_in_utc_and_in_the_readers_time_where_it_differs() -> None:
    assert moment(1_767_189_800) == "2025-12-31 14:03:20 UTC"
    assert moment(1_767_189_800, zoneinfo.ZoneInfo("UTC")) == "2025-12-31 14:03:20 UTC"
    assert moment(1_767_189_800, zoneinfo.ZoneInfo("Europe/Berlin")) == ("2025-12-31 14:03:20 UTC (15:03:20 your time)")


@pytest.mark.parametrize(
    ("seconds", "text"), [(12, "12 s"), (90, "90 s"), (150, "2.5 min"), (7200, "2 h"), (200_000, "2.3 d")]
)
def test_lengths_of_time(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_counts() -> None:
    assert count(1, "query", "queries") == "1 query"
    assert count(2, "query", "queries") == "2 queries"
    assert count(0, "rule") == "0 rules"
