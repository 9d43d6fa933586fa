"""On what each rule was seen to fire: `python -m tests.captures.proof [--write]`.

It replays every recording in the tree, judged every few seconds as the agent does and at its end as `kvitals triage`
does. It holds the outcome against the written cases. `rules/proof.csv` is the result: *real* where a recording of a
real program fires the rule, *captured* where only a recording with simulated engines does, *modelled* where only
written series do. A rule whose recordings are all gone loses its proof by itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from kvitals.app.pipeline import Pipeline, Setup, span_at
from kvitals.app.sources.recording import replay_moments
from kvitals.app.sources.recording_reader import span_of
from kvitals.config import Config
from kvitals.rules.loader import load
from kvitals.rules.proof import PROOF_FILE, Proof, RuleProof, read_proofs, write_proofs
from tests.captures.looks import knowledge, setup

ROOT = Path(__file__).parents[2]
SIMULATED = ("tests/captures/others/dynamo_",)
"""Recordings of programs whose engines are simulated: Dynamo's mocker."""

MAX_NAMED = 3
"""Recordings that a row names; the others are counted."""


def recordings() -> list[Path]:
    """Every recording in the tree."""
    return sorted([*(ROOT / "app/demo").glob("*.kvcap"), *(ROOT / "tests/captures").rglob("*.kvcap")])


def fired(path: Path) -> frozenset[str]:
    """The codes of the rules that fire at some moment of a recording, or in triage at its end."""
    codes: set[str] = set()
    for _, pipeline in replay_moments(path, _setup(path)):
        codes |= _now(pipeline)
    pipeline.observe_span(span_at(*span_of(path)))  # the end as the agent judges it
    return frozenset(codes | _now(pipeline))


def _setup(path: Path) -> Setup:
    """The rules that ship, under the objectives that the recording's truth states; else under the default ones."""
    for suffix in (".truth.json", ".json"):
        stated = path.with_suffix(suffix)
        slo = json.loads(stated.read_text(encoding="utf-8")).get("slo") if stated.exists() else None
        if slo:
            return setup(**slo) if isinstance(slo, dict) else setup(*slo)
    return Setup(knowledge(), Config())


def _now(pipeline: Pipeline) -> set[str]:
    return {judgement.rule.code for judgement in pipeline.judgements if judgement.outcome == "fired"}


def proofs(seen: dict[Path, frozenset[str]]) -> Iterator[RuleProof]:
    """The proof of every rule that ships, from what fired in which recording."""
    for code in sorted(load().rules):
        on = sorted(str(path.relative_to(ROOT)) for path, codes in seen.items() if code in codes)
        real = [name for name in on if not name.startswith(SIMULATED)]
        kind: Proof = "real" if real else "captured" if on else "modelled"
        chosen = real or on
        yield RuleProof(code, kind, tuple(Path(name).stem for name in chosen[:MAX_NAMED]), len(chosen))


def _of_one(path: Path) -> tuple[Path, frozenset[str]]:
    return path, fired(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where the tree's file is not what the recordings say."""
    parser = argparse.ArgumentParser(prog="python -m tests.captures.proof", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PROOF_FILE.name}")
    args = parser.parse_args(arguments)
    with ProcessPoolExecutor(2) as workers:
        found = list(proofs(dict(workers.map(_of_one, recordings()))))
    for kind in ("real", "captured", "modelled"):
        print(f"{sum(one.proof == kind for one in found)} rules are {kind}")
    if args.write:
        write_proofs(found)
    stale = [one.code for one in found if read_proofs().get(one.code) != one]
    if stale:
        print(f"not as in {PROOF_FILE.name}: {', '.join(stale)}; --write writes it")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
