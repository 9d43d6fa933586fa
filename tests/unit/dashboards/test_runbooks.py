"""The runbooks: every page is there, every link leads somewhere, and nothing of a page is taken for HTML."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kvitals.dashboards.runbooks import FOLDER, INDEX, LIKELIEST, files, page
from kvitals.dashboards.runbooks_site import HOME, STYLE, site, write
from kvitals.rules.loader import load
from kvitals.ui.cli.main import main
from tests.support.loops import for_each

KNOWLEDGE = load()


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.found += [value for name, value in attrs if name in ("href", "src") and value is not None]


def test_every_rule_has_a_page_and_the_index_has_all() -> None:
    made = files(KNOWLEDGE)
    assert made.keys() == {f"{FOLDER}/{INDEX}", *(f"{FOLDER}/{code}.md" for code in KNOWLEDGE.rules)}
    linked = set(re.findall(r"\]\((\w+)\.md\)", made[f"{FOLDER}/{INDEX}"]))
    assert linked == KNOWLEDGE.rules.keys()


def test_links_of_the_markdown_lead_to_pages() -> None:
    made = files(KNOWLEDGE)
    for path, text in made.items():
        for target in re.findall(r"\]\(([^)]+)\)", text):
            assert target.startswith("https://github.com/") or f"{FOLDER}/{target}" in made, (path, target)


def test_links_of_the_site_lead_to_its_files() -> None:
    made = site(KNOWLEDGE)
    for name, text in made.items():
        if name == STYLE:
            continue
        links = Links()
        links.feed(text)
        assert HOME in links.found
        assert not links.tags & {"script", "iframe", "img"}
        for target in links.found:
            assert target.startswith("https://github.com/") or target in made, (name, target)


def test_a_page_has_what_one_needs_at_night() -> None:
    text = page(KNOWLEDGE.rules["KVC01"], KNOWLEDGE)
    for heading in (
        "What it sees",
        "When it is wrong",
        "What to do",
        "The condition",
        "The alert",
        "The levers, in order",
    ):
        assert f"## {heading}" in text
    assert "Does not fix:" in text
    assert "[LAT01](LAT01.md)" in text


def test_html_in_a_rule_is_text() -> None:
    rule = KNOWLEDGE.rules["LAT01"]
    assert "<script>" not in site(KNOWLEDGE)["LAT01.html"]
    assert "&gt;" in site(KNOWLEDGE)["LAT01.html"]  # of its condition
    assert ">" in rule.when


def test_the_command_writes_the_site(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["rules", "site", "--out", str(tmp_path / "books")])
    assert (tmp_path / "books" / HOME).exists()
    assert write(KNOWLEDGE, tmp_path / "again") == len(KNOWLEDGE.rules) + 1


def test_show_prints_the_same_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["rules", "show", "lat01"])
    shown = capsys.readouterr().out
    for heading in re.findall(r"^## (.+)$", page(KNOWLEDGE.rules["LAT01"], KNOWLEDGE), re.M):
        assert heading in shown


@for_each("code", sorted(KNOWLEDGE.rules))
def test_a_page_begins_with_the_first_minute(code: str) -> None:
    text = page(KNOWLEDGE.rules[code], KNOWLEDGE)
    box = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith(">")]
    assert box[0] == "> **First 60 seconds**"
    whole = "\n".join(box)
    for what in ("Users feel it:", "Can it wait:", "kvitals triage http://HOST:PORT", "Board: `/d/kvitals-"):
        assert what in whole
    assert len(re.findall(r"\]\(", whole.partition("Likeliest causes")[2])) <= LIKELIEST


def test_the_likeliest_causes_are_the_core_ones() -> None:
    text = page(KNOWLEDGE.rules["LAT01"], KNOWLEDGE)
    (line,) = (line for line in text.splitlines() if "Likeliest causes" in line)
    causes = re.findall(r"\[(\w+)\]", line)
    core = {code for code, rule in KNOWLEDGE.rules.items() if rule.core and "LAT01" in rule.explains}
    assert len(causes) == LIKELIEST
    assert set(causes[: len(core)]) == core
