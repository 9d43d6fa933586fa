"""What is demanded of records, and the arithmetic of it. No I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvitals.agent.requests.request_families import TTFT

from ..traffic import percentile
from .clients import FAILED, FINISHED, LEFT, Seen

Told = Mapping[str, Any]
"""A record as the API tells it."""

MEDIAN_LIMIT_S, P95_LIMIT_S = 0.005, 0.020
ENOUGH = 50
LOADED_SHARE, LOADED_S = 0.05, 0.010
UNATTRIBUTED_LIMIT = 0.05
LAST_BYTE_S = 0.050
"""A client that hangs up this close to the last byte may have had all of it."""


@dataclass(frozen=True)
class Check:
    """Something that was demanded, whether it is so, and the figures."""

    name: str
    ok: bool
    said: str
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pair:
    """A request as its client saw it, and its record."""

    seen: Seen
    record: Told


def pairs(seen: Iterable[Seen], records: Mapping[str, Told]) -> list[Pair]:
    """Clients' requests with the records of their ids; those without a record are left out."""
    return [Pair(one, records[one.id]) for one in seen if one.id in records]


def all_there(name: str, seen: Sequence[Seen], records: Mapping[str, Told]) -> Check:
    """Every request has its record, and only one."""
    missing = [one.id for one in seen if one.id not in records]
    return Check(f"{name}: records", not missing, f"{len(seen) - len(missing)} of {len(seen)} requests have one")


def quiet(name: str, some: Sequence[Pair], of: str) -> Check:
    """Record and client differ by little, one request at a time. Where there are few, the p95 is one request's, and how
    busy the machine was in that moment: it is told and nothing is demanded of it."""
    off = differences(some, of)
    if not off:
        return Check(f"{name}: {of}", False, "no record tells it")
    median, p95 = percentile(off, 0.5) or 0.0, percentile(off, 0.95) or 0.0
    ok = len(off) == len(some) and median <= MEDIAN_LIMIT_S and (len(some) < ENOUGH or p95 <= P95_LIMIT_S)
    figures = {"requests": len(off), "median_s": median, "p95_s": p95, "max_s": max(off)}
    return Check(f"{name}: {of}", ok, f"|client - record| {_ms(median)} median, {_ms(p95)} p95, n={len(off)}", figures)


def loaded(name: str, some: Sequence[Pair]) -> Check:
    """Under load TTFT is within the larger of 5 % and 10 ms, for the median request and for 95 of 100. Of the others it
    is told how many would be, had the client not waited for a core itself."""
    told = [p for p in some if _has(p, "ttft")]
    beyond = [(over, p) for p in told if (over := _over(p)) > 0]
    within = len(told) - len(beyond)
    own = sum(1 for over, p in beyond if over <= (p.seen.no_core or 0.0))
    ok = len(told) == len(some) > 0 and within >= 0.95 * len(some)
    median = percentile(differences(some, "ttft"), 0.5) or 0.0
    figures = {"requests": len(some), "within": within, "but_for_the_client": own, "median_s": median}
    said = f"{within} of {len(some)} within the limit, {_ms(median)} median"
    if beyond:
        said += f"; {own} of the other {len(beyond)} but for what the client itself waited for a core"
    return Check(f"{name}: ttft", ok, said, figures)


def _over(pair: Pair) -> float:
    """By how much the two times to the first token differ beyond the larger of 5 % and 10 ms, seconds."""
    return _off(pair, "ttft") - max(LOADED_S, LOADED_SHARE * (by_client(pair, "ttft") or 0.0))


def quantiles(name: str, some: Sequence[Pair]) -> Check:
    """Quantiles of the records' TTFT are in the clients' bucket or the next one to it."""
    found = {}
    for share in (0.5, 0.9, 0.99):
        clients = percentile([one for p in some if (one := by_client(p, "ttft")) is not None], share)
        records = percentile([p.record["ttft"] for p in some if p.record.get("ttft") is not None], share)
        apart = None if clients is None or records is None else abs(bucket(clients) - bucket(records))
        found[f"p{share * 100:.0f}"] = (clients, records, apart)
    ok = all(apart is not None and apart <= 1 for _, _, apart in found.values())
    words = [f"{q} {_ms(c)} and {_ms(r)}" for q, (c, r, _) in found.items()]
    return Check(f"{name}: quantiles", ok, f"client and record: {', '.join(words)}", {"quantiles": found})


def unattributed(name: str, some: Sequence[Pair], *, limit: float = UNATTRIBUTED_LIMIT) -> Check:
    """Little of a request's time is nobody's, at the median."""
    shares = [(phase_seconds(p.record, "unattributed") or 0.0) / p.record["e2e"] for p in some if p.record.get("e2e")]
    median = percentile(shares, 0.5)
    ok = median is not None and median <= limit
    said = "unknown" if median is None else f"{median:.1%} of e2e at the median"
    return Check(f"{name}: unattributed", ok, said, {"median": median})


def cached_as_usage(name: str, some: Sequence[Pair]) -> Check:
    """Tokens are those of the response's usage, cached ones too."""
    fields = ("prompt_tokens", "cached_tokens", "output_tokens")
    told = [p for p in some if p.seen.cached_tokens is not None]
    wrong = [p.seen.id for p in told if any(p.record.get(f) != getattr(p.seen, f) for f in fields)]
    some_cached = sum(1 for p in told if p.seen.cached_tokens)
    ok = bool(told) and not wrong
    said = f"{len(told) - len(wrong)} of {len(told)} as in the response ({some_cached} with cached tokens)"
    return Check(f"{name}: tokens", ok, said, {"wrong": wrong})


def cached_unknown(name: str, some: Sequence[Pair]) -> Check:
    """Nobody told cached tokens, so none are told, and not 0."""
    told = [p.record["cached_tokens"] for p in some if p.record.get("cached_tokens") is not None]
    known = sum(1 for p in some if p.record.get("prompt_tokens") == p.seen.prompt)
    ok = bool(some) and not told and known == len(some)
    return Check(f"{name}: cached tokens", ok, f"unknown in {len(some) - len(told)} of {len(some)}")


def phase_sources(name: str, some: Sequence[Pair], wanted: Mapping[str, str]) -> Check:
    """Phases are there, and measured or derived as they can be. Of each: in how many records."""
    counts = {
        phase: Counter(one["source"] for p in some for one in p.record["phases"] if one["name"] == phase)
        for phase in wanted
    }
    ok = bool(some) and all(counts[phase][source] == len(some) for phase, source in wanted.items())
    words = [f"{phase} {', '.join(f'{s} {n}' for s, n in sorted(c.items())) or 'never'}" for phase, c in counts.items()]
    return Check(f"{name}: phases", ok, f"of {len(some)}: {'; '.join(words)}")


def adds_up(name: str, some: Sequence[Pair]) -> Check:
    """The phases of a record are its end-to-end time."""
    wrong = [p for p in some if abs(sum(_seconds(p.record)) - (p.record.get("e2e") or -1.0)) > 1e-6]
    return Check(f"{name}: sums", bool(some) and not wrong, f"phases add up in {len(some) - len(wrong)} of {len(some)}")


def tenants(seen: Sequence[Seen], records: Mapping[str, Told]) -> tuple[list[Check], list[dict[str, Any]]]:
    """Each tenant's requests, tokens, first tokens and hang-ups are those of the ledger. Also who left so close to the
    last byte, or to the first one, that both are right."""
    close = [p for p in pairs(seen, records) if _is_close(p)]
    listed = [{"id": p.seen.id, "tenant": p.seen.tenant, "story": _story(p)} for p in close]
    left_out = {p.seen.id for p in close}
    checks = []
    for tenant in sorted({one.tenant for one in seen}):
        mine = [one for one in seen if one.tenant == tenant and one.id not in left_out]
        told = [p.record for p in pairs(mine, records)]
        ledger = {
            "requests": len(mine),
            "success": sum(1 for one in mine if one.status == FINISHED),
            "aborted": sum(1 for one in mine if one.status == LEFT),
            "with ttft": sum(1 for one in mine if one.ttft is not None),
            "prompt tokens": sum(one.prompt for one in mine if one.status == FINISHED),
            "cached tokens": sum(one.cached_tokens or 0 for one in mine if one.status == FINISHED),
        }
        done = [one for one in told if one["outcome"] == "success"]
        recorded = {
            "requests": len(told),
            "success": len(done),
            "aborted": sum(1 for one in told if one["outcome"] == "aborted"),
            "with ttft": sum(1 for one in told if one.get("ttft") is not None),
            "prompt tokens": sum(one.get("prompt_tokens") or 0 for one in done),
            "cached tokens": sum(one.get("cached_tokens") or 0 for one in done),
        }
        off = [f"{key} {recorded[key]} and not {ledger[key]}" for key in ledger if ledger[key] != recorded[key]]
        off += [_story(p) for p in pairs(mine, records) if _ENDS.get(p.seen.status) != p.record["outcome"]]
        said = "; ".join(off) if off else ", ".join(f"{key} {value}" for key, value in ledger.items())
        checks.append(Check(f"tenant {tenant}", not off, said, {"ledger": ledger, "records": recorded}))
    return checks, listed


_ENDS = {FINISHED: "success", LEFT: "aborted", FAILED: "error"}


def _story(pair: Pair) -> str:
    """What client and record say of one request, from when it was sent."""
    seen, record = pair.seen, pair.record
    client = f"{seen.status} at {_ms(seen.ended - seen.sent)} with {seen.pieces} pieces"
    return f"{seen.id}: client {client}, record {record['outcome']} at {_ms(record['end'] - seen.sent)}"


def _is_close(pair: Pair) -> bool:
    """A client that left within a moment of the last byte, or of the first output, which it may or may not have had."""
    seen, record = pair.seen, pair.record
    if seen.status != LEFT:
        return False
    if record["outcome"] == "success":
        return bool(record["end"] - seen.ended <= LAST_BYTE_S)  # a client that was slow left behind the last byte
    told = record.get("ttft")
    if (told is None) == (seen.ttft is None):
        return False
    first = record["start"] + told if told is not None else seen.sent + (seen.ttft or 0.0)
    return abs(first - seen.ended) <= LAST_BYTE_S


def differences(some: Sequence[Pair], of: str) -> list[float]:
    return [_off(p, of) for p in some if _has(p, of)]


def bucket(seconds: float) -> int:
    """The bucket of the request side's TTFT histograms in which a time falls."""
    return bisect_left(TTFT, seconds)


def phase_seconds(record: Told, name: str) -> float | None:
    return next((one["seconds"] for one in record["phases"] if one["name"] == name), None)


def _seconds(record: Told) -> Iterable[float]:
    return (one["seconds"] for one in record["phases"] if one["seconds"] is not None)


def by_client(pair: Pair, of: str) -> float | None:
    """What the client's clock says of the same. The tap sees the first text, an engine its first token."""
    if of == "e2e":
        return pair.seen.e2e
    return pair.seen.ttft if pair.record.get("sources", {}).get("ttft") != "engine" else pair.seen.first


def _has(pair: Pair, of: str) -> bool:
    return pair.record.get(of) is not None and by_client(pair, of) is not None


def _off(pair: Pair, of: str) -> float:
    return abs((by_client(pair, of) or 0.0) - pair.record[of])


def _ms(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1e3:.1f} ms"
