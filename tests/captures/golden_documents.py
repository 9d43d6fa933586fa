"""What every recording's documents say, written to a folder, so that two versions can be compared.

`python -m tests.captures.golden_documents OUT [NAME ...]` writes one JSON file per recording: `triage`, `cache`,
`check`, `whatif` and the last verdict of `replay`. `--compare BEFORE AFTER` lists the figures that differ between two
such folders.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.command import ROOT, answer

FOLDERS = ("tests/captures", "app/demo")
COMMANDS = {
    "triage": ["triage", "--json", "{}"],
    "cache": ["cache", "--json", "{}"],
    "check": ["check", "--json", "{}"],
    "whatif": ["whatif", "--json", "--capture", "{}"],
    "replay": ["record", "--replay", "{}"],
}
MAX_LISTED = 20
"""Differences of one document that are listed."""


def recordings(names: Sequence[str] = ()) -> list[Path]:
    """Every recording of the tree, or those of these stems."""
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.kvcap"))]
    return [path for path in found if not names or path.stem in names]


def documents(path: Path) -> dict[str, Any]:
    """Each command's exit code and answer; text where the answer is not JSON."""
    return {name: _answer([part.format(path) for part in command]) for name, command in COMMANDS.items()}


def _answer(arguments: list[str]) -> dict[str, Any]:
    given = answer(arguments)
    try:
        document: Any = json.loads(given.out)
    except ValueError:
        lines = given.out.strip().splitlines()
        document = lines[-1:] if "--replay" in arguments else lines
    return {"code": given.code, "answer": document, "errors": given.err.strip()}


def differences(before: Any, after: Any, at: str = "") -> Iterator[str]:
    """Every place where two documents differ, as `path: before -> after`."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from differences(before.get(key), after.get(key), f"{at}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{at}[{i}]")
    elif before != after:
        yield f"{at}: {json.dumps(before)[:160]} -> {json.dumps(after)[:160]}"


def _write(path: Path, out: Path) -> str:
    (out / f"{path.stem}.json").write_text(json.dumps(documents(path), indent=1, sort_keys=True) + "\n")
    return path.stem


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--compare", type=Path, metavar="BEFORE", help="list what differs from this folder")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.compare is None:
        with ProcessPoolExecutor(2) as workers:
            for name in workers.map(_write, chosen := recordings(args.names), [args.out] * len(chosen)):
                print(name, flush=True)
        return 0
    several = [path for path in sorted(args.out.glob("*.json")) if not args.names or path.stem in args.names]
    changed = 0
    for path in several:
        both = [json.loads((folder / path.name).read_text()) for folder in (args.compare, args.out)]
        found = list(differences(*both))
        changed += bool(found)
        for line in found[:MAX_LISTED]:
            print(f"{path.stem}{line}")
        if len(found) > MAX_LISTED:
            print(f"{path.stem}: {len(found) - MAX_LISTED} more")
    print(f"{changed} of {len(several)} recordings differ")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
