"""What the documents say: links lead somewhere, commands are ones that there are, settings are taken, quoted output is
what is printed, codes of rules exist.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from kvitals.config import build
from kvitals.rules.loader import load
from kvitals.ui.cli.completion import SHELLS
from kvitals.ui.cli.main import COMMANDS, SHORT, main, parser
from tests.support.loops import for_each

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted(
    path
    for place in (ROOT, ROOT / "docs", ROOT / "docs" / "journeys", ROOT / "docs" / "decisions")
    for path in place.glob("*.md")
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"^(?:\$ )?(?:\S*/)?kvitals (.+?)(?:\s{2,}[^\s-].*|\s+#.*)?$")
NAMES = {path: str(path.relative_to(ROOT)) for path in DOCUMENTS}
QUOTING = ("README.md", "docs/journeys/on-call.md", "docs/journeys/tenants-and-cascades.md")
"""Documents that quote what a command prints on a recording that is there."""


def fences(path: Path) -> list[tuple[str, str]]:
    return FENCE.findall(path.read_text(encoding="utf-8"))


def commands(path: Path) -> list[str]:
    """The arguments of each `kvitals` command line in a document's blocks of shell."""
    found = []
    for language, text in fences(path):
        if language in ("", "sh", "console"):
            lines = text.replace("\\\n", " ").splitlines()
            found += [match[1] for line in lines if (match := COMMAND.match(line.strip()))]
    return [one for one in found if "..." not in one and "[" not in one]  # `[` is of a synopsis


def anchors(path: Path) -> set[str]:
    """What can be linked to in a document, as GitHub names it."""
    heads = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.replace("`", "").lower()).strip().replace(" ", "-") for head in heads}


@for_each("path", DOCUMENTS, ids=NAMES.__getitem__)
def test_rows_of_tables_have_as_many_cells_as_their_heads(path: Path) -> None:
    cells = 0
    for line in FENCE.sub("", path.read_text(encoding="utf-8")).splitlines():
        found = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not cells or not found or found == cells, line
        cells = found


@for_each("path", DOCUMENTS, ids=NAMES.__getitem__)
def test_links_lead_somewhere(path: Path) -> None:
    for link in LINK.findall(FENCE.sub("", path.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{NAMES[path]} links to {link}"
        assert not anchor or anchor in anchors(target), f"{NAMES[path]} links to {link}: no such heading"


@for_each("path", [p for p in DOCUMENTS if commands(p)], ids=NAMES.__getitem__)
def test_commands_are_ones_that_there_are(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in commands(path):
        words = shlex.split(line)
        if set(words) & {"--help", "--version", "version"}:
            continue
        if words[0] == "completion":
            assert words[1] in SHELLS, f"{NAMES[path]}: kvitals {line}: no such shell"
            continue
        words = [*SHORT.get(words[0], words[:1]), *words[1:]]
        try:
            assert words[0] in COMMANDS, f"{NAMES[path]}: kvitals {line}: no such command"
            parser(words[0]).parse_args(words)
        except SystemExit:
            raise AssertionError(f"{NAMES[path]}: kvitals {line}\n{capsys.readouterr().err}") from None


def test_the_page_about_commands_names_every_command() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"`kvitals {name}" not in page] == []


def test_no_block_of_the_readme_is_longer_than_a_screen() -> None:
    """25 lines: a reader sees the command, its answer and the next sentence at once."""
    assert [len(text.splitlines()) for _, text in fences(ROOT / "README.md") if len(text.splitlines()) > 25] == []


def test_some_commands_were_found() -> None:
    assert len([line for path in DOCUMENTS for line in commands(path)]) > 60


@for_each("path", [p for p in DOCUMENTS if any(x == "toml" for x, _ in fences(p))], ids=NAMES.__getitem__)
def test_settings_are_taken(path: Path) -> None:
    for language, text in fences(path):
        if language == "toml":
            build(tomllib.loads(text), path)


@for_each("path", DOCUMENTS, ids=NAMES.__getitem__)
def test_codes_of_rules_exist(path: Path) -> None:
    known = set(load().rules)
    groups = {code[:3] for code in known}
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    named = {code for code in re.findall(r"\b[A-Z]{3}\d{2}\b", text) if code[:3] in groups}
    assert named <= known, f"{NAMES[path]}: no rules {sorted(named - known)}"


@pytest.mark.parametrize("name", QUOTING)
def test_quoted_output_is_what_is_printed(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block after a command on a file of this tree: its lines are printed in this order; `...` leaves some out."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "108")
    blocks = fences(ROOT / name)
    compared = 0
    for (_, asked), (language, quoted) in pairwise(blocks):
        lines = [match[1] for line in asked.splitlines() if (match := COMMAND.match(line))]
        runs = [line for line in lines if any((ROOT / word).is_file() for word in line.split())]
        if len(runs) != 1 or language:
            continue
        with pytest.raises(SystemExit):
            main(shlex.split(runs[0]))
        printed = [re.sub(r"\s+", " ", line).strip() for line in capsys.readouterr().out.splitlines()]
        at = 0
        for line in (re.sub(r"\s+", " ", line).strip() for line in quoted.splitlines()):
            if line and line != "...":
                places = [n for n in range(at, len(printed)) if line in printed[n]]
                assert places, f"{name}: `{line}` is not printed by `kvitals {runs[0]}`, or not there"
                at = places[0] + 1
        compared += 1
    assert compared
