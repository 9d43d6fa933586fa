"""The command line: `python -m tests.lab.ledger --help`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ..paths import LabError
from ..product import kvitals_command
from ..requests.plays import table
from .frames import PUBLISHERS
from .frames import main as listen_to
from .proofs import PROOFS, prove
from .recording import SITUATIONS, record


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 where something was demanded and is not so."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab ledger", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="record a situation, with its truth beside it")
    recording.add_argument("situation", choices=SITUATIONS)
    recording.add_argument("--out", type=Path, required=True, help="the folder for NAME.kvcap and NAME.truth.json")
    recording.add_argument("--kvitals", help="the command to prove instead of this checkout's")
    recording.add_argument("--messages", type=Path, help="also the publisher's messages as they came, in this file")
    recording.add_argument("--seed", default="", help="of what is asked")
    frames = commands.add_parser("frames", help="what a publisher sends, and whether the product hears it all")
    frames.add_argument("publisher", choices=PUBLISHERS)
    frames.add_argument("--out", type=Path, required=True, help="the folder for PUBLISHER.RANK.hex")
    proving = commands.add_parser("prove", help="demand of real engines what the ledger and what-if tell")
    proving.add_argument("proofs", nargs="*", metavar="PROOF", help=f"of {', '.join(PROOFS)} (all)")
    proving.add_argument("--out", type=Path, help="the folder for recordings; those that are there are not made anew")
    proving.add_argument("--kvitals", help="the command to prove instead of this checkout's")
    args = parser.parse_args(arguments)
    if args.command == "prove":
        return _prove(args.proofs or list(PROOFS), args.out, kvitals_command(args.kvitals))
    if args.command == "frames":
        print(json.dumps(listen_to(args.publisher, args.out), indent=1))
        return 0
    truth = record(args.situation, args.out, kvitals_command(args.kvitals), args.messages, args.seed)
    print(json.dumps({key: value for key, value in truth.items() if key != "requests"}, indent=1))
    print(f"{len(truth['requests'])} requests")
    return 0


def _prove(names: Sequence[str], out: Path | None, kvitals: Sequence[str]) -> int:
    if unknown := [name for name in names if name not in PROOFS]:
        raise LabError(f"no proof called {', '.join(unknown)}; there are {', '.join(PROOFS)}")
    ok = True
    with ExitStack() as undo:
        folder = out or Path(undo.enter_context(tempfile.TemporaryDirectory()))
        for name in names:
            found = prove(name, folder.resolve(), kvitals)
            print(table(name, found), end="\n\n", flush=True)
            ok = ok and all(one.ok for one in found)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
