"""Files that someone else names are opened by series/files.py alone. What opens one otherwise is listed, with why."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.command import ALL_IN_TURN

ROOT = Path(__file__).parents[3]
FOLDERS = ("series", "kvcache", "rules", "config", "agent", "diagnoser", "dashboards", "app", "ui")
OPENS = re.compile(
    r"\.open\((?:\"|encoding|newline)|(?<![\w.])open\(|\.(?:read|write)_(?:bytes|text)\(|os\.open\(|sqlite3\.connect\(|cafile=|load_verify_locations\((?!cadata)|\.load_cert_chain"
)
ALLOWED = {
    "series/files.py": "the one way",
    "agent/collectors/file_tail.py": "follows logs: without waiting, and regular files only",
    "agent/collectors/host.py": "files of the kernel",
    "agent/discovery.py": "files of the kernel",
    "agent/memory_limit.py": "files of the kernel",
    "agent/requests/tenant_names.py": "a new file, by O_EXCL",
    "app/bounded_process.py": "starts a process, and opens no file",
    "series/history/schema.py": "opened by SQLite, after refuse_irregular",
    "app/notify/queue.py": "opened by SQLite, after refuse_irregular",
    "series/recordings.py": "a new file, by O_EXCL: what is there already is refused and not opened",
    "rules/shipped.py": "data of the package",
    "rules/engine_flags.py": "data of the package; written in the source tree alone",
    "rules/proof.py": "data of the package; written in the source tree alone",
    "rules/catalogue.py": "data of the package",
    "diagnoser/review/published.py": "data of the package",
    "diagnoser/sizing/published_caches.py": "data of the package",
    "dashboards/lint/metrics.py": "data of the package",
    "dashboards/reference/__init__.py": "generates the documentation in the source tree",
    "dashboards/reference/metrics.py": "data of the package",
    "dashboards/runbooks_site.py": "pages into a directory of the user's",
    "dashboards/board_files.py": "data of the package",
    "dashboards/generate.py": "generates files in the source tree, and compares them",
    "ui/web/app.py": "data of the package",
    "ui/web/commands.py": "in a temporary directory of its own",
    "ui/web/source_registry.py": "in a temporary directory of its own",
    "ui/review/tables.py": "in a temporary directory of its own",
    "ui/cli/common.py": "a device or pipe that the user names, written to as it is",
    "ui/cli/gate.py": "a new file, by O_EXCL",
    "ui/cli/standard_streams.py": "/dev/null in place of a closed standard stream",
    "ui/cli/rules_authoring.py": "data of the package",
}


def test_every_opening_is_the_one_way_or_listed() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if any(_opens(line) for line in path.read_text(encoding="utf-8").splitlines())
    }
    assert found - ALLOWED.keys() == set(), "open it with kvitals.series.files, or list it with the reason"
    assert ALLOWED.keys() - found == set(), "opens nothing any more: take it off the list"


def _opens(line: str) -> bool:
    return bool(OPENS.search(line)) and "CaptureReader.open" not in line and "def open" not in line


COMMANDS = (
    ("triage", "FIFO.kvcap"),
    ("replay", "FIFO.kvcap"),
    ("lint", "FIFO"),
    ("triage", "--at=-1m", "HISTORY"),
    ("size", "--model-config", "FIFO"),
    ("rules", "lint", "FOLDER"),
    ("whatif", "--trace", "FIFO", "--capacity", "10"),
    ("whatif", "--trace", "FIFO.gz", "--capacity", "10"),
    ("run", "--no-web", "--config", "FIFO"),
    ("triage", "--config", "FIFO"),
    ("run", "--no-web", "--listen", "127.0.0.1:0", "--config", "REMOTE"),
)


def test_a_fifo_is_refused_with_one_message(tmp_path: Path) -> None:
    (tmp_path / "own" / "codes").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    for name in ("FIFO", "FIFO.gz", "FIFO.kvcap", "kept/history.db", "own/codes/OWN01-x.yaml"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "REMOTE").write_text(
        '[[target]]\nurl = "http://127.0.0.1:9"\n[history]\nenabled = false\n'
        '[remote]\nlisten = "127.0.0.1:0"\ncert_file = "FIFO"\nkey_file = "FIFO"\nclient_ca_file = "FIFO"\n'
    )
    places = {name: tmp_path / name for name in ("FIFO", "FIFO.gz", "FIFO.kvcap", "REMOTE")} | {
        "FOLDER": tmp_path / "own",
        "HISTORY": tmp_path / "kept",
    }
    commands = [[str(places.get(word, word)) for word in words] for words in COMMANDS]
    done = subprocess.run(
        [sys.executable, "-c", ALL_IN_TURN],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)},
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(COMMANDS), done.stderr
    for words, (code, printed) in zip(COMMANDS, answers, strict=True):
        assert code in (1, 2), (words, printed)
        assert "Traceback" not in printed, words
        assert "not a regular file" in " ".join(printed.split()), (words, printed)
