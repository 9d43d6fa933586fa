"""All texts of `rules/` are in the words of docs/glossary.md: plain words that a tired reader reads once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from kvitals.rules.loader import ROOT
from kvitals.rules.shipped import YAML_LOADER
from tests.support.loops import for_each

REFUSED = {
    r"can not": "cannot",
    r"reckon\w*": "calculate",
    r"for want of": "for lack of, missing",
    r"of late": "recently",
    r"at hand|to be had": "available",
    r"heed\w*": "name what to do",
    r"lacks|lacked|lacking": "is missing",
    r"tells?|telling|told(?!, learned)": "report, show, state",  # `told` is a value of a label of the ledger
    r"says|speaks? of": "report, show, state",
    r"brings?|brought|bringing": "enable, add, load",
    r"thrown (?:away|out)|throws? (?:away|out)": "evict, preempt, discard",
    r"wanted again|wants? again|done twice": "recomputed, refault",
    r"wait(?:s|ed|ing)? for room": "wait for capacity",
    r"hit ratios?": "hit rate",
    r"look-ups?": "lookup",
    r"who (?:comes|paid for whom)": "name the clients or tenants",
    r"whoever|anybody|nobody|somebody": "name the thing or the party",
    r"anew": "again, recompute, restart",
    r"mend(?:s|ed|ing)?(?!-)": "fix",
    r"utilisation": "utilization",
    r"quarter of an hour": "15 minutes",
    r"time to (?:the )?first token": "TTFT",
}
"""A pattern of what is refused, and what is written instead."""

NOT_PROSE = {"references", "expr", "query", "flag", "lever", "name"}
"""Keys whose values are titles of papers, expressions, options and slugs."""

FILES = sorted(path for path in ROOT.rglob("*.yaml") if path.is_file())


def texts(node: yaml.Node | None) -> Iterator[tuple[int, str]]:
    """The strings of a file that people read, with their lines."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value not in NOT_PROSE:
                yield from texts(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from texts(item)
    elif isinstance(node, yaml.ScalarNode) and " " in node.value.strip():
        yield node.start_mark.line + 1, " ".join(node.value.split())


def refused(text: str) -> list[str]:
    """What is refused in a text, each with what to write instead."""
    return [
        f"{match[0]!r}: write {better}"
        for pattern, better in REFUSED.items()
        for match in re.finditer(rf"(?<![\w$-])(?:{pattern})(?!\w)", text, re.IGNORECASE)
    ]


@for_each("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_has_a_refused_word(path: Path) -> None:
    root = yaml.compose(path.read_text(encoding="utf-8"), YAML_LOADER)
    assert [f"line {line}: {message}" for line, text in texts(root) for message in refused(text)] == []


def test_a_refused_word_is_seen_in_a_sentence() -> None:
    assert refused("The hit ratio says that blocks are thrown out.") == [
        "'says': write report, show, state",
        "'thrown out': write evict, preempt, discard",
        "'hit ratio': write hit rate",
    ]
    assert refused("The hit rate shows that requests are preempted.") == []


def test_every_file_of_knowledge_is_read() -> None:
    assert {"codes", "levers", "signals", "engines", "spans"} <= {path.parent.name for path in FILES}
