"""Write the boards, or check that the written ones are those that the knowledge gives now.

python -m dashboards.generate            writes dashboards/generated/
python -m dashboards.generate --check    fails where a file differs, is missing, or should not be there
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dashboards.boards import overview
from dashboards.grafana import encode
from dashboards.queries import Queries
from rules.loader import Knowledge, load

GENERATED = Path(__file__).with_name("generated")
BOARDS: dict[str, Callable[[Queries], dict[str, Any]]] = {"overview.json": overview.build}
SHOWN_LINES = 40


def generate(knowledge: Knowledge) -> dict[str, str]:
    """Every generated file by name. Raises where a board asks for what the knowledge does not have."""
    queries = Queries(knowledge)
    return {name: encode(build(queries)) for name, build in BOARDS.items()}


def differences(files: dict[str, str], directory: Path) -> list[str]:
    """What is not as it should be in `directory`, each with the first lines that differ."""
    strays = sorted({path.name for path in directory.glob("*")} - files.keys())
    found = [f"{name}: no board makes this file; delete it" for name in strays]
    for name, text in files.items():
        path = directory / name
        written = path.read_text(encoding="utf-8") if path.exists() else ""
        if written != text:
            lines = difflib.unified_diff(
                written.splitlines(), text.splitlines(), "written", "generated", lineterm="", n=1
            )
            found.append(f"{name}: differs\n" + "\n".join(list(lines)[:SHOWN_LINES]))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m dashboards.generate", description="Write the Grafana boards.")
    parser.add_argument("--check", action="store_true", help="compare with the written files, and write nothing")
    args = parser.parse_args(arguments)
    files = generate(load())
    if args.check:
        wrong = differences(files, GENERATED)
        for line in wrong:
            print(line, file=sys.stderr)
        if wrong:
            print("run: python -m dashboards.generate", file=sys.stderr)
        return 1 if wrong else 0
    GENERATED.mkdir(exist_ok=True)
    for name, text in files.items():
        (GENERATED / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
