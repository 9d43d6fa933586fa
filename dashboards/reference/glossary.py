"""The words of glossary.yaml, and the tables of docs/glossary.md that are made of them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from kvitals.dashboards.reference.text import table
from kvitals.rules.shipped import load_shipped

FILE = "glossary.md"
VERBS = "verbs"
"""The subject whose words are acts; none of them has a word that it replaces."""

_PLACE = re.compile(r"<!-- words of ([a-z-]+) -->\n.*?<!-- end of words -->", re.DOTALL)
_WORDS = Path(__file__).with_name("glossary.yaml")


class Term(Struct, frozen=True, forbid_unknown_fields=True):
    """A word with its meaning, and the words that are not used for it."""

    is_: str = msgspec.field(name="is")
    not_: str = msgspec.field(name="not", default="")


@cache
def subjects() -> dict[str, dict[str, Term]]:
    """Subject -> word -> term, in the order of the glossary."""
    texts = {
        subject: {word: {"is": term} if isinstance(term, str) else term for word, term in words.items()}
        for subject, words in load_shipped(_WORDS).items()
    }
    return msgspec.convert(texts, dict[str, dict[str, Term]])


def terms() -> dict[str, tuple[str, Term]]:
    """Each word in lower case -> its entry. An entry such as `running, waiting` has several words. A verb is a word
    only where no other subject has it."""
    entries = [entry for words in subjects().values() for entry in words.items()]
    return {word: entry for entry in reversed(entries) for word in entry[0].lower().split(", ")}


def fill_glossary(document: str) -> str:
    """The document with its tables as they are now. Raises ValueError where a subject has no place."""
    missing = subjects().keys() - {place[1] for place in _PLACE.finditer(document)}
    if missing:
        raise ValueError(f"docs/{FILE}: no place `<!-- words of ... -->` with its end for {', '.join(sorted(missing))}")
    return _PLACE.sub(_filled, document)


def _filled(place: re.Match[str]) -> str:
    words = subjects()[place[1]]
    if place[1] == VERBS:
        rows = table(("verb", "act"), ((word, term.is_) for word, term in words.items()))
    else:
        rows = table(("word", "meaning", "not"), ((word, term.is_, term.not_) for word, term in words.items()))
    return "\n".join([f"<!-- words of {place[1]} -->", *rows, "<!-- end of words -->"])
