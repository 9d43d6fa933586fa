"""`python -m tests.lab.week --out DIR`: a history of a week, for `kvitals review DIR`.

Real engines were recorded for minutes; a day here is such minutes again and again (`tests/fleet/week.py`). What is said
of them is said by the same judge at the same pace as on a node, and written by the same code into the same history.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.lab.week.play import week


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True, help="a new directory for the history")
    parser.add_argument("--end", type=float, help="when the week ends, seconds since the epoch (today, 00:00 UTC)")
    args = parser.parse_args()
    if args.out.exists():
        parser.error(f"{args.out} is there already")
    end = args.end if args.end is not None else time.time() // 86400.0 * 86400.0
    began = time.monotonic()
    moments = week(args.out, end)
    print(f"{moments} moments judged in {time.monotonic() - began:.0f} s, until {end:.0f}: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
