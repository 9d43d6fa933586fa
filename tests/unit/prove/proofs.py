"""A proof as `kvitals prove` makes it."""

from typing import Any

import msgspec

from kvitals.diagnoser.change_proof import Proof, ProofEffect
from kvitals.rules.finding import Entity

BEGUN = 1_790_000_000.0


def effect(**other: Any) -> ProofEffect:
    """A signal that became better; `other` replaces."""
    given = ProofEffect(
        metric="ttft_mean_seconds", title="mean time to first token", unit="seconds", decides=True, before=0.97,
        after=0.012, change=-0.99, low=-0.993, high=-0.95, predicted=None, verdict="better", not_worse=True,
        blocks=(12, 5), text="970 ms → 12 ms",
    )  # fmt: skip
    return msgspec.structs.replace(given, **other)


def proof(**other: Any) -> Proof:
    """A change that worked; `other` replaces."""
    throughput = effect(
        metric="finished_per_second", title="requests that finish", unit="per_second", before=5.1, after=14.2,
        change=1.78, low=1.2, high=2.4, text="5.1/s → 14.2/s",
    )  # fmt: skip
    cost = effect(
        metric="itl_mean_seconds", title="mean time between tokens", decides=False, before=0.01, after=0.03,
        change=2.0, low=1.2, high=None, verdict="worse", not_worse=False, text="10 ms → 30 ms",
    )  # fmt: skip
    given = Proof(
        version="1.0", entity=Entity("engine", {"engine": "engine"}, "engine"), url="http://127.0.0.1:8000", peers=[],
        finding="SCH01", levers=["Allow more concurrent requests"], changed=["slots 2 → 16"], begun=BEGUN,
        applied=BEGUN + 120, measured=BEGUN + 180, decided=BEGUN + 230, ended=BEGUN + 231, verdict="worked",
        conclusion="The change worked: mean time to first token 970 ms → 12 ms; requests that finish 5.1/s → 14.2/s. At"
        " the cost of mean time between tokens 10 ms → 30 ms.",
        state="kept", guard_rail="", guard_rails=["TTFT p99 at most 2 s (objective)", "requests finish"],
        load="requests finished 5.1/s → 14.2/s, prompts 288 tokens → 288 tokens", block_seconds=10.0, confidence=0.95,
        effects=[effect(), throughput, cost], apply="systemctl restart engine", rollback="systemctl revert engine",
    )  # fmt: skip
    return msgspec.structs.replace(given, **other)
