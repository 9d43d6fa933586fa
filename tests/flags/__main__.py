"""Take a release into the table of flags: `python -m tests.flags vllm 0.34.0`.

It downloads the release with pip (the source distribution of vLLM, the wheel of SGLang), reads its flags, writes
`rules/flags/SYSTEM.csv`, and prints what changed since the release before and which rules, levers, boards and alerts
that touches. `--from DIR` reads sources that are there already, `--dry-run` writes nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

from kvitals.app import upgrade
from kvitals.rules.engine_flags import FOLDER, FlagTable, flag_table, with_release, write_table
from kvitals.rules.loader import load
from kvitals.rules.versions import release
from kvitals.ui.cli.common import answer_console
from kvitals.ui.cli.upgrade import show
from tests.flags.engines import READERS

PIP = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check")
TIMEOUT_SECONDS = 600.0


def download(system: str, version: str, folder: Path) -> Path:
    """The sources of a release, below a folder. Raises FileNotFoundError where the registry has none."""
    if system == "sglang":
        command = [*PIP, "--only-binary", ":all:", "--dest", str(folder), f"sglang=={version}"]
        subprocess.run(command, check=False, timeout=TIMEOUT_SECONDS)
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder, [n for n in archive.namelist() if n.startswith("sglang/srt/")])
            return folder
        raise FileNotFoundError(f"the registry has no wheel of sglang {version} for this machine")
    return _source_distribution(version, folder)


def _source_distribution(version: str, folder: Path) -> Path:
    """The folder `vllm` of a source distribution. Its metadata is not built: that needs torch, so pip fails after it
    unpacked the sources, which `--no-clean` keeps."""
    options = ["--no-build-isolation", "--no-binary", "vllm", "--no-clean", "--dest", str(folder)]
    with patch.dict("os.environ", TMPDIR=str(folder)):
        subprocess.run(
            [*PIP, *options, f"vllm=={version}"], check=False, timeout=TIMEOUT_SECONDS, stderr=subprocess.DEVNULL
        )
    for found in folder.glob("pip-download-*/vllm_*/vllm"):
        return found
    raise FileNotFoundError(f"the registry has no source distribution of vllm {version}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: taken in; 1: the sources could not be read."""
    parser = argparse.ArgumentParser(prog="python -m tests.flags", description=__doc__)
    parser.add_argument("system", choices=sorted(READERS))
    parser.add_argument("version")
    parser.add_argument("--from", dest="sources", type=Path, metavar="DIR", help="unpacked sources of the release")
    parser.add_argument("--dry-run", action="store_true", help="print what changed, and write nothing")
    args = parser.parse_args(arguments)
    before = flag_table(args.system)
    assert before is not None
    try:
        with tempfile.TemporaryDirectory() as folder:
            sources = args.sources or download(args.system, args.version, Path(folder))
            table = with_release(before, args.version, READERS[args.system](sources))
    except (OSError, ValueError, SyntaxError) as error:
        print(f"{args.system} {args.version} was not read: {error}", file=sys.stderr)
        return 1
    if not args.dry_run:
        write_table(table, FOLDER / f"{args.system}.csv")
    _report(table, args.version)
    return 0


def _report(table: FlagTable, version: str) -> None:
    older = [known for known in table.releases if release(known) < release(version)]
    if older:
        with patch.object(upgrade, "flag_table", lambda system: table):
            show(upgrade.compare_versions(load(), table.system, older[-1], version), answer_console(width=120))


if __name__ == "__main__":
    sys.exit(main())
