"""Every sentence that a user reads is in the words of docs/style.md: rules, help, messages, boards, documents."""

from __future__ import annotations

import re

from tests.support.sentences import DRAWN, KINDS, draw, help_texts, sentences
from tests.unit.test_plain_words import refused_words

RIDDLES = {
    r"thr[eo]ws? (?:\w+ ){0,3}out": "preempt, evict, discard",
    r"what comes of": "the effect of",
    r"worked on for": "computed for",
    r"utilisation": "utilization",
    r"hit ratios?": "hit rate",
    r"quarter of an hour": "15 minutes",
    r"wait(?:s|ed|ing)? for room": "wait for capacity",
    r"by (?:someone|somebody)|(?:for|of|to|with) (?:nobody|somebody|whom)": "the thing or the party",
}
"""Patterns of sentences that a reader reads twice, and what is written instead."""

LABEL_VALUES = frozenset({"(told, learned"})
"""Values of labels among the words."""

QUOTED = re.compile(r"`[^`]*`|\{[^}]*\}")
NOT_A_THING = re.compile(r"(?:of|whose|that|and|for|so|by|if|in|with)\b", re.IGNORECASE)


def refused(text: str) -> list[str]:
    """The refused words and riddles of a sentence. "Lack" has an object in "lack of memory"."""
    prose = QUOTED.sub("", text)
    for value in LABEL_VALUES:
        prose = prose.replace(value, "(")
    return [match[0] for match in REFUSED.finditer(prose)]


REFUSED = re.compile(
    rf"(?<![\w-])(?:(?:{'|'.join(map(re.escape, refused_words()))})(?! of\b)|{'|'.join(RIDDLES)})(?![\w-])",
    re.IGNORECASE,
)


def test_no_sentence_has_a_refused_word() -> None:
    wrong = [
        f"{place}: {words} in {sentence!r}"
        for kind, known in sentences().items()
        if kind != "document"  # tests/unit/test_plain_words.py reads whole documents
        for sentence, place in known.items()
        if (words := refused(sentence))
    ]
    assert wrong == []


def test_no_sentence_begins_with_of() -> None:
    """ "Of the requests that ..., more than 10 %": a reader learns only at the end what the subject is."""
    wrong = [place for known in sentences().values() for text, place in known.items() if text.startswith("Of ")]
    assert wrong == []


def test_help_of_an_option_begins_with_the_thing() -> None:
    wrong = [(place, text) for place, text in help_texts() if NOT_A_THING.match(text)]
    assert wrong == []


def test_refused_words_are_seen_in_a_sentence() -> None:
    assert refused("The engine throws a request out for want of blocks.") == ["throws a request out", "for want of"]
    assert refused("A process killed for lack of memory; `told` and {said} are names.") == []


def test_a_draw_has_equal_parts_of_each_kind_and_does_not_change() -> None:
    drawn = draw(1)
    assert len(drawn) == len({sentence for _, _, sentence in drawn}) == DRAWN
    parts = [sum(kind == name for kind, _, _ in drawn) for name in KINDS]
    assert max(parts) - min(parts) <= 1
    assert drawn == draw(1) != draw(2)
