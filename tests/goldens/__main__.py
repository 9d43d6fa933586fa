"""`python -m tests.goldens` compares what pages mean with the goldens; with `--write` it writes them anew."""

from __future__ import annotations

import argparse
import sys

from tests.goldens.pages import ROOT, golden, pages


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.goldens", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the goldens anew")
    parser.add_argument("names", nargs="*", help="pages whose name begins like this; all by default")
    arguments = parser.parse_args()
    changed = 0
    for page in pages():
        if arguments.names and not page.name.startswith(tuple(arguments.names)):
            continue
        path, text = ROOT / f"{page.name}.txt", golden(page)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            changed += 1
            print(path.name)
            if arguments.write:
                path.write_text(text, encoding="utf-8")
    return 0 if arguments.write else min(changed, 1)


if __name__ == "__main__":
    sys.exit(main())
