"""Mutate what a parser reads for a while and see that what must hold holds.

    python -m tests.fuzz NAME [--seconds 600] [--seed N] [FILE ...]

NAME: `parser` and `families` read sessions of metrics pages; the others are in `tests/fuzz/parsers.py`. Mutations are
made at random from recorded inputs, from the kept corpus (`tests/fuzz/corpus/NAME`: inputs that broke something
once, or that stand for a kind of attack) and from what came of them. With atheris installed (`pip install
kvitals[fuzz]`) that is the first half of the time, in the second its coverage leads them, and slowly. Either
way an input that takes more CPU time than its target allows breaks the run, one that hangs ends it with a traceback,
memory is watched, and the session that broke something is kept in `.fuzz/`. FILE: sessions to check once, such as a
kept one.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import os
import random
import subprocess
import sys
import time
import warnings
from pathlib import Path

from tests.fuzz.attacked import MODULES, PAGES, Target
from tests.fuzz.mutations import MAX_SESSION_BYTES

KEPT = Path(".fuzz")
CORPUS = Path(__file__).with_name("corpus")
HANGS_SECONDS = 180
MEMORY_BYTES = 600e6  # more than this above that after the first minute is a leak
POOL = 500  # sessions to go on from, of so many bytes at most: small ones are fast
POOL_BYTES = 40_000


def target(name: str) -> Target:
    """A parser under attack, with its kept corpus among the examples."""
    if name in PAGES:
        from tests.fuzz.checks import CHECKS
        from tests.fuzz.mutations import mutate, seeds

        found = Target(CHECKS[name], seeds, mutate)
    else:
        from tests.fuzz.parsers import TARGETS

        found = TARGETS[name]
    return found._replace(seeds=lambda: [*found.seeds(), *kept(name)])


def kept(name: str) -> list[bytes]:
    """The corpus that is checked in."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


def at_random(target: Target, seconds: float, seed: int) -> int:
    """Returns how many inputs were checked. Raises what a check raised."""
    rng = random.Random(seed)
    pool = list(target.seeds())
    for one in pool:
        run(target, one)
    began, checked, settled = time.monotonic(), 0, 0.0
    while (done := time.monotonic() - began) < seconds:
        session = target.mutate(rng.choice(pool), rng)
        run(target, session)
        checked += 1
        if len(session) < POOL_BYTES and rng.random() < 0.1:  # strange things on top of strange things
            pool.append(session)
            if len(pool) > POOL:
                del pool[rng.randrange(len(pool))]
        settled = settled or (resident() if done > min(60.0, seconds / 2) else 0.0)
        if settled and resident() - settled > MEMORY_BYTES:
            keep(session)
            raise MemoryError(f"{resident() / 1e6:.0f} MB, after {settled / 1e6:.0f} MB")
        if checked % 1000 == 0:
            print(f"{checked} sessions, {done:.0f} s, {resident() / 1e6:.0f} MB", flush=True)
    return checked


def led_by_coverage(name: str, seconds: float, seed: int) -> None:
    """Never returns: libFuzzer ends the process, with 0 where nothing was found."""
    import atheris

    with atheris.instrument_imports(include=[*MODULES[name]]):
        attacked = target(name)

    corpus = KEPT / f"corpus-{name}"
    corpus.mkdir(parents=True, exist_ok=True)
    for session in attacked.seeds():
        (corpus / hashlib.sha256(session).hexdigest()[:16]).write_bytes(session)

    def change(data: bytes, max_size: int, seed: int) -> bytes:
        return attacked.mutate(data, random.Random(seed))[:max_size]

    arguments = [sys.argv[0], str(corpus), f"-artifact_prefix={KEPT}/", "-verbosity=0", "-print_final_stats=1"]
    arguments += [f"-max_total_time={seconds:.0f}", f"-timeout={HANGS_SECONDS}", f"-max_len={MAX_SESSION_BYTES}"]
    arguments += [f"-seed={seed or 1}", "-rss_limit_mb=2048"]
    atheris.Setup(arguments, attacked.attack, custom_mutator=change)
    atheris.Fuzz()


def run(target: Target, session: bytes) -> None:
    """Check a session; what breaks something or takes too much CPU time is kept, and what hangs ends the process."""
    faulthandler.dump_traceback_later(HANGS_SECONDS, exit=True)
    try:
        target.attack(session)
    except BaseException:
        keep(session)
        raise
    finally:
        faulthandler.cancel_dump_traceback_later()


def keep(session: bytes) -> None:
    KEPT.mkdir(exist_ok=True)
    path = KEPT / f"broke-{hashlib.sha256(session).hexdigest()[:16]}"
    path.write_bytes(session)
    print(f"kept as {path}", file=sys.stderr, flush=True)


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=(*MODULES,))
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-random", action="store_true", help="without atheris, though it is installed")
    options = parser.parse_args()
    warnings.simplefilter("error")
    if not options.files and not options.at_random and _has_atheris():
        half = options.seconds / 2
        random_half = [options.check, "--at-random", f"--seconds={half}", f"--seed={options.seed}"]
        subprocess.run([sys.executable, "-m", "tests.fuzz", *random_half], check=True)
        led_by_coverage(options.check, half, options.seed)
    attacked = target(options.check)
    for file in options.files:
        run(attacked, file.read_bytes())
    if not options.files:
        checked = at_random(attacked, options.seconds, options.seed)
        print(f"{options.check}: {checked} inputs in {options.seconds:.0f} s, seed {options.seed}, nothing broke")
    return 0


def _has_atheris() -> bool:
    try:
        import atheris  # noqa: F401
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
