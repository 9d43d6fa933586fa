"""On what each rule that ships was seen to fire, from `rules/proof.csv`.

`python -m tests.captures.proof` computes the file from the recordings in the tree.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

PROOF_FILE = Path(__file__).with_name("proof.csv")
_COLUMNS = ("code", "proof", "recordings", "count")

Proof = Literal["real", "captured", "modelled"]
"""`real`: a recording of a real program fires it. `captured`: a recording of a real program with simulated engines
does. `modelled`: only series that were written by hand do."""

MEANING: dict[Proof, str] = {
    "real": "a recording of a real program fires it",
    "captured": "a recording with simulated engines fires it",
    "modelled": "only written series fire it: no recording of a real program has fired it yet",
}


@dataclass(frozen=True)
class RuleProof:
    """The proof of one rule. recordings: the first few that fire it; count: how many do."""

    code: str
    proof: Proof
    recordings: tuple[str, ...] = ()
    count: int = 0


@lru_cache(maxsize=1)
def read_proofs() -> Mapping[str, RuleProof]:
    """The proofs of the rules that ship, by code. Raises OSError, or KeyError or ValueError for a broken file."""
    with PROOF_FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {row["code"]: _proof(row) for row in rows}


def _proof(row: Mapping[str, str]) -> RuleProof:
    kinds: dict[str, Proof] = {kind: kind for kind in MEANING}
    return RuleProof(row["code"], kinds[row["proof"]], tuple(row["recordings"].split()), int(row["count"]))


def proof_of(code: str) -> RuleProof | None:
    """The proof of a rule that ships; None for a rule of one's own, of which nothing is known."""
    return read_proofs().get(code)


def write_proofs(proofs: Iterable[RuleProof]) -> None:
    """Write the file anew."""
    with PROOF_FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows([one.code, one.proof, " ".join(one.recordings), one.count] for one in proofs)
    read_proofs.cache_clear()
