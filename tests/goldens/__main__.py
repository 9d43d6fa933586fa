"""`python -m tests.goldens` compares what pages mean, what documents say and what commands print with the goldens.
`--write` writes them anew."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.goldens import documents, pages, terminal


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.goldens", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the goldens anew")
    parser.add_argument("names", nargs="*", help="pages and documents whose name begins like this; all by default")
    arguments = parser.parse_args()
    changed = 0
    for path, text in _made(arguments.names):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            changed += 1
            print(path.name)
            if arguments.write:
                path.write_text(text, encoding="utf-8")
    return 0 if arguments.write else min(changed, 1)


def _made(names: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Each chosen golden's file, and what it would hold now."""
    beginnings = tuple(names) or ("",)
    for page in pages.pages():
        if page.name.startswith(beginnings):
            yield pages.ROOT / f"{page.name}.txt", pages.golden(page)
    for name in documents.NAMES:
        if name.startswith(beginnings):
            yield from ((documents.ROOT / file, text) for file, text in documents.texts(name).items())
    for name in terminal.COMMANDS:
        if f"terminal-{name}".startswith(beginnings):
            yield from terminal.texts(name).items()


if __name__ == "__main__":
    sys.exit(main())
