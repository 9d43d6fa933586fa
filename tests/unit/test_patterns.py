"""Patterns from outside: what they match, what is refused, and what they cost."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.series.patterns import PatternError, compile_pattern, groups
from kvitals.series.types import METRIC_NAME, Labels, Matcher, MatchOp
from tests.support.loops import for_each

SLOW = [
    "(.?){40}x", "(.??){40}x", "(a?){30}a{30}", "(?P<b>.?){30}x", "(x+)+y", "(a|a)*b", ".*.*.*.*.*.*.*.*x",
    "(?:a?){40}a{40}", "(((a*)*)*)*b", "(a|aa)+$b",
]  # fmt: skip
"""Which take a backtracking engine exponential time in the length of the value."""


@pytest.mark.parametrize("pattern", SLOW)
def test_patterns_that_backtracking_never_ends_take_little_time(pattern: str) -> None:
    found, value = compile_pattern(pattern), "a" * 500
    began = time.process_time()
    for _ in range(100):
        found.matches(value)
    assert groups(pattern).of(value) is None
    assert time.process_time() - began < 1.0


@for_each(
    "pattern, matching, others",
    [
        ("", [""], ["a", "\n"]),
        ("ab", ["ab"], ["a", "abc", "xab", "ab\n", "AB"]),
        ("a|bc|", ["a", "bc", ""], ["b", "abc", "|"]),
        (r"a\.b|c\|d", ["a.b", "c|d"], ["axb", "c", "d"]),
        (r"a\\|b", ["a\\", "b"], ["a", "a|b"]),
        (".*", ["", "a", "a\nb"], []),
        (".+", ["a", "\n"], [""]),
        ("ab.*", ["ab", "ab\nc"], ["a", "xab"]),
        ("ab.+", ["abc"], ["ab"]),
        (".*ab", ["ab", "xab"], ["abx"]),
        (".+ab", ["xab"], ["ab"]),
        (".*ab.*", ["ab", "xaby"], ["ba"]),
        (".+ab.*", ["xab"], ["ab", "aby"]),
        (".*ab.+", ["aby", "xabab"], ["ab", "xab"]),
        (".+ab.+", ["xaby", "ababab"], ["abab", "xab", "aby"]),
        (".+.+", ["ab"], ["a", ""]),
        ("(a|b)c", ["ac", "bc"], ["a", "ab"]),
        ("^ab$", ["ab"], ["ab\n"]),
        ("(?i)ab", ["AB", "aB"], ["abc"]),
        (r"\pL+", ["é", "ab"], ["1"]),
        ("[[:alpha:]]+", ["ab"], ["é", "1"]),
        (r"\Qa.b|\E", ["a.b|"], ["axb|"]),
        (r"\QC:\C\E", ["C:\\C"], ["C:C"]),
        (r"\d+", ["12"], ["\u0661"]),
        (r"\w", ["a", "_"], ["é"]),
        (r"\x{1F642}", ["\U0001f642"], ["x"]),
        (".", ["\n", "é", "\U0001f642", "\ud800"], ["", "ab"]),
        ("\ufffd", [], ["\ud800"]),  # a literal is compared as it is
        ("(?:\ufffd)", ["\ud800", "\ufffd"], ["?"]),
        (r"a{,2}", ["a{,2}"], ["a"]),
        ("é|b", ["é"], ["e"]),
    ],
)  # fmt: skip
def test_what_a_pattern_matches(pattern: str, matching: list[str], others: list[str]) -> None:
    found = compile_pattern(pattern)
    assert [value for value in matching if not found.matches(value)] == []
    assert [value for value in others if found.matches(value)] == []


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "missing )"),
        ("a**", "bad repetition operator: **"),
        ("(?=a)", "invalid perl operator: (?="),
        (r"(a)\1", r"invalid escape sequence: \1"),
        (r"\C", r"invalid escape sequence: \C"),
        (r"a\\\C", r"invalid escape sequence: \C"),
        (r"\Z", r"invalid escape sequence: \Z"),
        ("x{1001}", "invalid repetition size: {1001}"),
        ("(((.{1,100}){1,100}){1,100})", "invalid repetition size"),
        (r"\pL{900}", "too large when compiled: use fewer or shorter repeats"),
        ("x" * 10_001, "10001 characters, but only 10000 are allowed: use several matchers"),
        ("a\ud800", "half of a surrogate pair"),
        ("(" * 5000, "missing )"),
    ],
)
def test_what_is_refused(pattern: str, why: str, capfd: pytest.CaptureFixture[str]) -> None:
    for compile_ in (compile_pattern, groups):
        with pytest.raises(PatternError) as caught:
            compile_(pattern)
        assert why in str(caught.value) and len(str(caught.value)) < 400
        str(caught.value).encode()
    assert capfd.readouterr() == ("", ""), "RE2 writes nothing to stderr"


_PIECES = st.sampled_from(
    [
        *"ab.|()?*+^$-", "[a-c]", "[^a]", r"\pL", r"\Q", r"\E", r"\d", r"\.", r"\C", "(?i)", "(?P<n>", "(?:", "{2}",
        "{1,30}", "{1000}", "??", "*?", "[[:alpha:]]", "é", "\n", "\x00", "\ud800", "(?s:", "(?<m>", "\\", "]", "[",
    ]
)  # fmt: skip
_PATTERNS = st.lists(_PIECES, max_size=12).map("".join) | st.text(max_size=20)
_VALUES = st.lists(st.text(alphabet="abc.é\n\ud800", max_size=300), min_size=1, max_size=4)


@given(_PATTERNS, _VALUES)
def test_nothing_but_a_pattern_error_is_raised_and_time_is_bounded(pattern: str, values: list[str]) -> None:
    began = time.process_time()
    try:
        found, parts = compile_pattern(pattern), groups(pattern)
    except PatternError as error:
        assert str(error)
        return
    for value in values:
        assert (parts.of(value) is not None) == found.matches(value)
    assert time.process_time() - began < 2.0


_LITERALS = st.text(alphabet="ab.|é\n", max_size=4)
_ENDS = st.sampled_from(["", ".*", ".+"])


@given(_ENDS, _LITERALS, _ENDS, st.text(alphabet="ab.|é\n", max_size=6))
def test_the_fast_ways_match_what_re2_matches(before: str, text: str, after: str, value: str) -> None:
    pattern = before + text.replace(".", "\\.") + after
    assert compile_pattern(pattern).matches(value) == compile_pattern(f"(?:{pattern})").matches(value)


def test_groups_by_number_and_by_name() -> None:
    assert groups("(?P<x>a)(b)?(é)").of("aé") == {"0": "aé", "1": "a", "2": "", "3": "é", "x": "a"}
    assert groups("(?P<x>a)(?<y>b)").names == {"x", "y"}
    assert groups("a").of("b") is None


def test_a_tester_is_matches_with_each_value_tried_once() -> None:
    sets = [Labels({METRIC_NAME: "up", "a": random.Random(n).choice("xyz") * 3}) for n in range(200)]
    for op in MatchOp:
        for value in ("xxx", "(x|y)+", "", "[^z]*"):
            for name in ("a", "missing"):
                matcher = Matcher(name, op, value)
                test = matcher.tester()
                assert [test(one) for one in sets] == [matcher.matches(one) for one in sets]
