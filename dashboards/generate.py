"""Write boards, rules, runbooks and reference documents, or check that the written ones are those of today's knowledge.

python -m kvitals.dashboards.generate            writes dashboards/generated/ and, in a clone, the references in docs/
python -m kvitals.dashboards.generate --check    fails where a file differs, is missing, or should not be there
python -m kvitals.dashboards.generate --out DIR --scrape-interval 15 --runbooks URL --boards URL    with your addresses
python -m kvitals.dashboards.generate --out DIR --rules rules.d                                     with your own rules
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from kvitals.dashboards import alerts_files, boards, manifests, reference, runbooks
from kvitals.dashboards.alerts_options import Options, receiver_url
from kvitals.rules.loader import Knowledge, load, shipped_problems

GENERATED = Path(__file__).with_name("generated")
SHOWN_LINES = 40
MOST_SECONDS = 86400.0


def generate(knowledge: Knowledge, options: Options | None = None) -> dict[str, str]:
    """Every generated file by its path. Raises where a board asks for what the knowledge does not have."""
    options = options or Options()
    drawn = boards.files(knowledge, options.runbooks, options.fast_seconds)
    written = alerts_files.files(knowledge, options, [json.loads(text) for text in drawn.values()])
    return drawn | manifests.boards(drawn) | written | runbooks.files(knowledge)


def differences(files: dict[str, str], directory: Path) -> list[str]:
    """What is not as it should be in `directory`, each with the first lines that differ."""
    written = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    extra = [f"{name}: no generator writes this file; delete it" for name in sorted(written - files.keys())]
    return extra + stale(files, directory)


def stale(files: dict[str, str], directory: Path) -> list[str]:
    """Which of the files are not in `directory` as they should be."""
    found = []
    for name, text in files.items():
        path = directory / name
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if before != text:
            lines = difflib.unified_diff(
                before.splitlines(), text.splitlines(), "written", "generated", lineterm="", n=1
            )
            found.append(f"{name}: differs\n" + "\n".join(list(lines)[:SHOWN_LINES]))
    return found


def write(files: dict[str, str], directory: Path) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    if args.rules and not args.out:
        print("--rules needs --out DIR: your own rules are never written into the repository's files", file=sys.stderr)
        return 2
    out = args.out or GENERATED
    knowledge = load(args.rules)
    if problems := [*shipped_problems(), *knowledge.problems]:
        print("\n".join(map(str, problems)), file=sys.stderr)
        return 1
    try:
        files = generate(knowledge, _options(args))
    except manifests.ManifestError as error:
        print(error, file=sys.stderr)
        return 1
    documents = {} if args.out or not reference.DOCS.is_dir() else reference.files(knowledge)
    if args.check:
        wrong = differences(files, out) + stale(documents, reference.DOCS)
        for line in wrong:
            print(line, file=sys.stderr)
        if wrong:
            print("run: python -m kvitals.dashboards.generate", file=sys.stderr)
        return 1 if wrong else 0
    try:
        write(files, out)
        write(documents, reference.DOCS)
    except OSError as error:
        print(f"cannot write {error.filename}: {error.strerror}; choose another --out", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    usual = Options()
    parser = argparse.ArgumentParser(
        prog="python -m kvitals.dashboards.generate", description="Write boards, rules for Prometheus, and runbooks."
    )
    parser.add_argument("--check", action="store_true", help="compare with the existing files, and write nothing")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to (dashboards/generated)")
    parser.add_argument(
        "--scrape-interval", type=_seconds, default=usual.scrape_seconds, metavar="SECONDS",
        help=f"scrape interval of your Prometheus; windows are at least eight intervals ({usual.scrape_seconds:g})",
    )  # fmt: skip
    parser.add_argument("--runbooks", default=usual.runbooks, metavar="URL", help="address that serves the runbooks")
    parser.add_argument("--boards", default=usual.boards, metavar="URL", help="of your Grafana")
    parser.add_argument(
        "--rules", type=Path, action="append", default=[], metavar="DIR", help="a directory with your own rules"
    )
    parser.add_argument("--receiver", default=usual.receiver, metavar="URL", help="takes Alertmanager's messages")
    parser.add_argument(
        "--slo-ttft", type=_seconds, default=usual.slo_ttft_seconds, metavar="SECONDS",
        help=f"TTFT p99 objective if no agent reports one ({usual.slo_ttft_seconds:g})",
    )  # fmt: skip
    parser.add_argument(
        "--slo-itl", type=_seconds, default=usual.slo_itl_seconds, metavar="SECONDS",
        help=f"the same for gaps between tokens ({usual.slo_itl_seconds:g})",
    )  # fmt: skip
    parser.add_argument(
        "--alerts", choices=("core", "extended"), default=usual.alerts,
        help=f"core: about 25 alerts on symptoms and lost capacity; extended: one for every rule ({usual.alerts})",
    )  # fmt: skip
    for name, default in (("page", usual.page), ("ticket", usual.ticket)):
        parser.add_argument(
            f"--severity-{name}", default=default, metavar="TEXT", help=f"`severity` label of {name} alerts ({default})"
        )
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text}: write seconds above 0, such as 15")
    return value


def _options(args: argparse.Namespace) -> Options:
    return Options(
        scrape_seconds=args.scrape_interval,
        runbooks=args.runbooks.rstrip("/"),
        boards=args.boards.rstrip("/"),
        receiver=receiver_url(args.receiver),
        slo_ttft_seconds=args.slo_ttft,
        slo_itl_seconds=args.slo_itl,
        alerts=args.alerts,
        page=args.severity_page,
        ticket=args.severity_ticket,
    )


if __name__ == "__main__":
    sys.exit(main())
