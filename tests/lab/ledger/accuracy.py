"""The look-ups that the product infers without token ids, held against those that were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvitals.agent.ledger.engine import SettledLookup

from .recorded import Row
from .resident import Scheduled

SAME_S = 1e-6
"""Look-ups have the engine's own times."""


@dataclass(frozen=True)
class Accuracy:
    """Counts of requests, but `looks` and `surplus`, which are of look-ups. Whose: right, wrong or not said."""

    requests: int
    found: int
    hits: int  # of those found: with as many blocks hit as the engine says
    chains: int  # with the very blocks of the prompt
    right: int
    wrong: int
    sessions: int  # right ones
    looks: int
    surplus: int  # look-ups that are no request's
    tokens: tuple[int, int]  # hit, by the look-ups and in truth
    looked_up: tuple[int, int]  # whole blocks of prompts, in tokens

    @property
    def share(self) -> float:
        """Of requests whose look-up is right in every block."""
        return self.chains / self.requests if self.requests else 0.0


def accuracy(
    looks: Sequence[SettledLookup], requests: Sequence[Row], truth: Mapping[str, Scheduled], block: int, *, named: bool
) -> Accuracy:
    """Hold them against each other. named: look-ups carry their request's id; else the time and the first block
    that was missed tell which is whose, for the test alone."""
    done = [row for row in requests if row["ok"]]
    of = _by_name(looks) if named else _by_miss(looks, done, truth, block)
    pairs = [(row, of[row["id"]]) for row in done if row["id"] in of]
    told = [(row, look) for row, look in pairs if look.party.tenant]
    return Accuracy(
        requests=len(done),
        found=len(pairs),
        hits=sum(look.hits * block == row["cached_tokens"] for row, look in pairs),
        chains=sum(look.hits * block == row["cached_tokens"] and look.chain == row["blocks"] for row, look in pairs),
        right=sum(look.party.tenant == row["tenant"] for row, look in told),
        wrong=sum(look.party.tenant != row["tenant"] for row, look in told),
        sessions=sum(look.party.session == row["session"] for row, look in pairs if row["session"]),
        looks=len(looks),
        surplus=len(looks) - len(pairs),
        tokens=(sum(look.hits for look in looks) * block, sum(row["cached_tokens"] for row in done)),
        looked_up=(sum(look.blocks for look in looks) * block, sum(len(row["blocks"]) for row in done) * block),
    )


def _by_name(looks: Sequence[SettledLookup]) -> dict[str, SettledLookup]:
    return {look.request: look for look in looks if look.request}


def _by_miss(
    looks: Sequence[SettledLookup], requests: Sequence[Row], truth: Mapping[str, Scheduled], block: int
) -> dict[str, SettledLookup]:
    """A look-up at the moment in which a request was scheduled, that missed the same block first."""
    at: dict[tuple[int, int], list[SettledLookup]] = {}
    for look in looks:
        if look.chain is not None and look.hits < len(look.chain):
            at.setdefault((round(look.at / SAME_S), look.chain[look.hits]), []).append(look)
    found = {}
    for row in requests:
        hits = (row["cached_tokens"] or 0) // block
        if hits >= len(row["blocks"]):
            continue
        moment = round(truth[row["id"]].at / SAME_S)
        alike = [one for near in (-1, 0, 1) for one in at.get((moment + near, row["blocks"][hits]), ())]
        if alike:
            found[row["id"]] = alike[0]
            at[round(alike[0].at / SAME_S), row["blocks"][hits]].remove(alike[0])
    return found
