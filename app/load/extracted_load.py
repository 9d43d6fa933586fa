"""The load of a recording: arrivals, token counts, shared prefixes, tenants and aborts, without any text.

A recording has no text, no token ids and no names of tenants. Block hashes become numbers in the order of their first
use, and tenants, sessions and adapters become `tenant-1` and so on, so that nothing of the recorded system is in it.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvitals.agent.node import Node
from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.store import MAX_RECORDS
from kvitals.app.sources.losses import SourceLoss
from kvitals.app.sources.recording import ended_node
from kvitals.config import Config
from kvitals.kvcache.accesses import Accesses

PrefixSource = Literal["KV events", "cached token counts", "unknown"]

INFERRED_BLOCK_TOKENS = 16
"""Tokens of a block where no KV events give the engine's own size."""
MATCH_SECONDS = 5.0
"""A lookup belongs to a request whose lookup is at most so far from the request's time."""
MIN_REQUESTS = 2


class NoLoadError(ValueError):
    """The recording has no load to extract; the message says what to record."""


class BrokenLoadError(NoLoadError):
    """A load file has a fault; the message names the file, the line, and what is wrong."""


@dataclass(frozen=True)
class LoadRequest:
    """One request. at: seconds after the first. blocks: equal numbers are equal prefixes. abort_after: seconds until
    its client gave up, None: it did not. estimated: its token counts are those of its tenant's median request."""

    at: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    tenant: str = ""
    session: str = ""
    adapter: str = ""
    abort_after: float | None = None
    estimated: bool = False


@dataclass(frozen=True)
class ExtractedLoad:
    """Requests by arrival. prefixes: where `blocks` come from; with_prefix: share of requests whose blocks were
    observed. left_out: requests without token counts that no other request of the recording stands for. truncated:
    whether the recording has more requests than are kept."""

    source: str
    requests: Sequence[LoadRequest]
    block_tokens: int
    prefixes: PrefixSource
    with_prefix: float
    left_out: int
    truncated: bool

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return self.requests[-1].at if self.requests else 0.0


def extract_load(path: Path, config: Config) -> ExtractedLoad:
    """The load of a recording. Raises NoLoadError, CaptureError, ConfigError."""
    ended = ended_node(path, config)
    refuse_losses(path.name, ended.losses)
    return load_of_node(path.name, ended.node)


def refuse_losses(name: str, losses: Iterable[SourceLoss]) -> None:
    """Raises NoLoadError where requests may be in what could not be read of a recording: its load is another one."""
    if lost := next((loss.text for loss in losses if loss.hides), ""):
        raise NoLoadError(f"{name} cannot be played: {lost}. Copy the file again from where it was recorded")


def load_of_node(source: str, node: Node) -> ExtractedLoad:
    """The load of the requests that a node holds; source: the name of the recording. Raises NoLoadError."""
    records = sorted(node.requests.store.newest(MAX_RECORDS), key=lambda one: one.start)
    if sum(one.prompt_tokens is not None and one.output_tokens is not None for one in records) < MIN_REQUESTS:
        raise NoLoadError(
            f"{source} has {len(records)} request records with token counts; a load needs {MIN_REQUESTS}. "
            f"Record the clients' requests too: kvitals tap before the engine and kvitals record --listen, or "
            f"spans of the engine (--otlp-traces-endpoint); see docs/requests.md"
        )
    accesses = node.ledger.accesses() if node.ledger is not None else None
    return _load(source, records, accesses if accesses is not None and len(accesses) else None)


def _load(source: str, records: Sequence[RequestRecord], accesses: Accesses | None) -> ExtractedLoad:
    medians = _Medians(records)
    chains = _matched_chains(records, accesses) if accesses is not None else {}
    block_tokens = accesses.block_size if accesses is not None else INFERRED_BLOCK_TOKENS
    numbers, names, prefixes = _Numbers(), _Names(), _InferredPrefixes(block_tokens)
    made: list[LoadRequest] = []
    left_out = observed = 0
    for index, record in enumerate(records):
        counts = medians.counts(record)
        if counts is None:
            left_out += 1
            continue
        prompt, output, estimated = counts
        chain: Iterable[object] = (
            chains[index] if index in chains else prefixes.chain(record, prompt, medians.cached(record))
        )
        observed += index in chains if chains else record.cached_tokens is not None
        made.append(
            LoadRequest(
                at=round(record.start - records[0].start, 3),
                prompt_tokens=prompt,
                output_tokens=output,
                blocks=numbers.chain(chain, -(-prompt // block_tokens)),
                tenant=names.name("tenant", record.tenant),
                session=names.name("session", record.session),
                adapter=names.name("adapter", record.lora),
                abort_after=round(record.end - record.start, 3) if record.outcome == "aborted" else None,
                estimated=estimated,
            )
        )
    found: PrefixSource = "KV events" if chains else "cached token counts" if observed else "unknown"
    full = len(records) >= MAX_RECORDS
    return ExtractedLoad(source, made, block_tokens, found, observed / len(made), left_out, full)


class _Medians:
    """Token counts of requests; of one without them, the medians of its tenant."""

    def __init__(self, records: Sequence[RequestRecord]) -> None:
        self._prompt: dict[str, list[int]] = defaultdict(list)
        self._output: dict[str, list[int]] = defaultdict(list)
        self._cached: dict[str, list[int]] = defaultdict(list)
        for one in records:
            if one.cached_tokens is not None:
                self._cached[one.tenant].append(one.cached_tokens)
            if one.prompt_tokens is not None and one.output_tokens is not None:
                for key in (one.tenant, ""):
                    self._prompt[key].append(one.prompt_tokens)
                    self._output[key].append(one.output_tokens)

    def counts(self, record: RequestRecord) -> tuple[int, int, bool] | None:
        """Prompt and output tokens, at least one each, and whether they are estimated; None for a request that did not
        reach an engine."""
        prompt, output = record.prompt_tokens, record.output_tokens
        if prompt is not None and output is not None and record.outcome != "aborted":
            return max(prompt, 1), max(output, 1), False
        if record.outcome not in ("aborted", "success"):
            return None
        key = record.tenant if record.tenant in self._prompt else ""
        known = prompt if prompt is not None else round(statistics.median(self._prompt[key]))
        # An aborted request would have gone on: what it had received is the least.
        wanted = max(output or 0, round(statistics.median(self._output[key])))
        return max(known, 1), max(wanted, 1), True

    def cached(self, record: RequestRecord) -> int:
        """Prompt tokens that the cache had. A client that left before its answer ended was told no count."""
        if record.cached_tokens is not None:
            return record.cached_tokens
        return round(statistics.median(self._cached[record.tenant])) if self._cached[record.tenant] else 0


class _Numbers:
    """Block hashes as numbers in the order of their first use, with new ones for the blocks that nobody else has."""

    def __init__(self) -> None:
        self._known: dict[object, int] = {}
        self._next = 0

    def chain(self, blocks: Iterable[object], length: int) -> tuple[int, ...]:
        """The first `length` blocks, filled up with new ones."""
        numbers: list[int] = []
        for block in blocks:
            if len(numbers) == length:
                break
            if block not in self._known:
                self._known[block] = self._new()
            numbers.append(self._known[block])
        return (*numbers, *(self._new() for _ in range(length - len(numbers))))

    def _new(self) -> int:
        self._next += 1
        return self._next - 1


class _Names:
    """Names as `tenant-1`, in the order of their first use."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = defaultdict(dict)

    def name(self, kind: str, name: str) -> str:
        """What stands for a name; empty for none."""
        known = self._known[kind]
        return known.setdefault(name, f"{kind}-{len(known) + 1}") if name else ""


class _InferredPrefixes:
    """Chains from counts of cached tokens: what was cached is taken for the beginning that a session's requests share,
    or a tenant's where there is no session."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens

    def chain(self, record: RequestRecord, prompt: int, cached: int) -> Iterable[object]:
        """The shared blocks of a request; the rest is its own."""
        group = (record.tenant, record.session)
        return [(group, position) for position in range(min(cached, prompt) // self._block_tokens)]


def _matched_chains(records: Sequence[RequestRecord], accesses: Accesses) -> dict[int, Sequence[object]]:
    """The chain of each request, by its index: the lookup of as many tokens that is nearest in time, each used once."""
    by_tokens: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for row in range(len(accesses)):
        by_tokens[int(accesses.tokens[row])].append((float(accesses.time[row]), row))
    chains: dict[int, Sequence[object]] = {}
    for index, record in enumerate(records):
        waiting = by_tokens.get(record.prompt_tokens or -1, [])
        at = _nearest(waiting, record.start)
        if at is not None and record.start - 1.0 <= waiting[at][0] <= max(record.end, record.start) + MATCH_SECONDS:
            _, row = waiting.pop(at)
            begin, end = int(accesses.start[row]), int(accesses.start[row + 1])
            chains[index] = [int(block) for block in accesses.block[begin:end]]
    return chains


def _nearest(times: Sequence[tuple[float, int]], at: float) -> int | None:
    """The index of the time nearest to `at`; None where there is none."""
    if not times:
        return None
    after = bisect_left(times, (at, -1))
    candidates = [one for one in (after - 1, after) if 0 <= one < len(times)]
    return min(candidates, key=lambda one: abs(times[one][0] - at))
