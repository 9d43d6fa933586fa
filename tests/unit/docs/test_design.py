"""docs/design.md is one page with one drawing, and every file that it names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
LINES = 90
FOLDERS = ("agent", "app", "config", "dashboards", "diagnoser", "docs", "kvcache", "kvitals", "rules", "series", "ui")
NAMED = re.compile(rf"\b(?:{'|'.join(FOLDERS)})/[\w./-]*\w/?")


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_it_is_one_page_with_one_drawing() -> None:
    assert len(PAGE.splitlines()) <= LINES
    assert PAGE.count("```") == 2


def test_every_file_that_it_names_exists() -> None:
    names = set(NAMED.findall(PAGE))
    assert len(names) > 25
    assert [name for name in sorted(names) if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists()] == []


def test_every_question_has_a_file_for_an_answer() -> None:
    rows = [row.split("|")[1:3] for row in section("Where is what").splitlines() if row.startswith("| ") and "?" in row]
    assert len(rows) >= 10
    assert [question for question, answer in rows if not NAMED.search(answer)] == []


def test_every_folder_of_the_house_is_in_the_table() -> None:
    house = section("The house")
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"kvitals", "tests", "benchmarks"}
    assert [name for name in sorted(packages) if f"| `{name}/`" not in house] == []
