"""The command line: `python -m tests.lab.ledger --help`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..product import kvitals_command
from .frames import PUBLISHERS
from .frames import main as listen_to
from .recording import SITUATIONS, record


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.ledger", description=__doc__)
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
    args = parser.parse_args()
    if args.command == "frames":
        print(json.dumps(listen_to(args.publisher, args.out), indent=1))
        return
    truth = record(args.situation, args.out, kvitals_command(args.kvitals), args.messages, args.seed)
    print(json.dumps({key: value for key, value in truth.items() if key != "requests"}, indent=1))
    print(f"{len(truth['requests'])} requests")


if __name__ == "__main__":
    main()
