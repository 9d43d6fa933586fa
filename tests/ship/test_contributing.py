"""The contribution guide's commands for a rule, verbatim, in a folder with nothing but the demo recordings in it.

make ship
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTION = GUIDE.partition("## A rule\n")[2].partition("\n## ")[0]
COMMANDS = [line for block in re.findall(r"^```sh\n(.*?)^```$", SECTION, re.M | re.S) for line in block.splitlines()]
CODE = "OWN01"


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8", "COLUMNS": "160", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, shell=True, cwd=folder, env=env, capture_output=True, text=True, timeout=240)


def written(folder: Path) -> set[str]:
    """The files of a contributor's own, by their place."""
    return {str(path.relative_to(folder)) for path in (folder / "rules.d").rglob("*") if path.is_file()}


def edit(folder: Path) -> None:
    """What a contributor does: words of their own in place of the example's."""
    rule = folder / "rules.d" / "codes" / f"{CODE}-too-many-wait.yaml"
    text = rule.read_text().replace("An example: ", "").replace("An example. ", "").replace("an example: ", "")
    text = text.replace("why this number and no other", "our users give up when ten are before them")
    text = text.replace(
        "What whoever is called at night does first, and what then.",
        "Look who sends most, and limit them at the gateway.",
    )
    rule.write_text(text.replace('title: "more', 'title: "More'))


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, subprocess.CompletedProcess[str]]]:
    """The folder after all commands, in their order, and what each came to."""
    folder = tmp_path_factory.mktemp("contributor")
    (folder / "app").symlink_to(ROOT / "app")
    done: dict[str, subprocess.CompletedProcess[str]] = {}
    for command in COMMANDS:
        done[command] = run(command, folder)
        if command.startswith("kvitals rules lint"):
            edit(folder)
            done["lint once more"] = run(command, folder)
    return folder, done


Followed = tuple[Path, dict[str, subprocess.CompletedProcess[str]]]


def test_the_guide_has_the_commands_from_nothing_to_a_board() -> None:
    assert [" ".join(command.split()[:3]) for command in COMMANDS] == [
        "kvitals rules new",
        "kvitals rules test",
        "kvitals rules lint",
        "kvitals triage app/demo/few_slots.kvcap",
        f"kvitals explain {CODE}",
        "kvitals rules site",
        "python -m kvitals.dashboards.generate",
    ]


def test_each_command_does_what_the_guide_says(followed: Followed) -> None:
    _, done = followed
    for command, came in done.items():
        wanted = {"kvitals rules lint rules.d": 1}.get(command, 1 if command.startswith("kvitals triage") else 0)
        assert came.returncode == wanted, f"{command}\n{came.stdout}\n{came.stderr}"
    problems = done["kvitals rules lint rules.d"].stdout.splitlines()[:-1]
    assert problems and all("still has the text of the example" in line for line in problems)


def test_two_files_are_all_that_is_edited(followed: Followed) -> None:
    folder, _ = followed
    assert written(folder) == {f"rules.d/codes/{CODE}-too-many-wait.yaml", f"rules.d/cases/{CODE}.yaml"}


def test_the_rule_has_a_page_an_alert_and_a_panel(followed: Followed) -> None:
    folder, done = followed
    assert "More requests wait than we want" in done[f"kvitals explain {CODE} --rules rules.d"].stdout
    assert (folder / "www" / f"{CODE}.html").is_file()
    assert (folder / "mine" / "runbooks" / f"{CODE}.md").is_file()
    for over in ("agents", "engines"):
        assert f"alert: {CODE}-too-many-wait" in (folder / f"mine/prometheus/{over}/alerts.yaml").read_text()
    board = json.loads((folder / "mine/boards/status.json").read_text())
    panels = [panel for row in board["panels"] for panel in [row, *row.get("panels", [])]]
    assert any(CODE in json.dumps(panel) for panel in panels)


def test_what_is_checked_in_is_of_the_rules_that_ship(followed: Followed) -> None:
    folder, _ = followed
    refused = run("python -m kvitals.dashboards.generate --rules rules.d", folder)
    assert refused.returncode == 2 and "--out" in refused.stderr
