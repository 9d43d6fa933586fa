"""What a request's time went into.

Each observer's durations are its own; times of different clocks are never compared here, durations are. Whoever knows
more of a stretch than others is believed first, nothing is counted twice, and what is left is unattributed, so that the
phases add up to the end-to-end time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from kvitals.agent.requests.observation import PHASES, RequestPart
from kvitals.agent.requests.record import UNATTRIBUTED, PhaseSource, RequestPhase
from kvitals.agent.requests.roles import LONGEST, EngineShare, OrderedShares, known_seconds, length

Waited = Callable[[str, float, float], bool | None]
"""Whether requests waited for capacity at an engine (as observers call it) between two times; None: nobody knows."""

QUEUE_OF_DECODE_SIDE = frozenset((("sglang", "decode_waiting"),))
"""Stages that are a part of decoding elsewhere, and on a decode side the wait for room in a batch after the KV came."""

NOTHING = 1e-9
"""Seconds that are rounding and no time."""

BY_DIFFERENCE = "the time outside of the engine: the observer's time minus the engine's time"
BY_TTFT = "from the first token to the end, both from the engine"
OUTER_TTFT = "from the first token to the end, both from the observer nearest to the client"
SIDE_AS_A_WHOLE = "the whole request to the {role} side, with its queue"
PULLED = "the decode side's queue time; no request waited for capacity there at that time"
IN_QUEUE = "within queue: {why}"
SOME_WAITED = "requests waited for capacity at the decode side, so its queue time includes both"
NOBODY_KNOWS = "it is unknown whether requests waited for capacity at the decode side"
UNTOLD = "no engine reported it"
MEANWHILE = "the decode side's wait for KV, minus the prefill side's work in that time"
CUT = "limited to the rest of the end-to-end time"
AT_THE_DOOR = (
    "mostly before the engine's own queue: the engine reads the request, and waits until the running step ends"
)


@dataclass(slots=True)
class _Claim:
    """Seconds that a phase says it took."""

    seconds: float = 0.0
    source: PhaseSource = "measured"
    start: float | None = None
    why: str = ""

    def add(self, seconds: float, start: float | None = None, why: str = "") -> None:
        self.seconds += seconds
        if start is not None and (self.start is None or start < self.start):
            self.start = start
        if why:
            self.source, self.why = "derived", why


def account(e2e: float, sides: OrderedShares, ttft: float | None, waited: Waited) -> tuple[RequestPhase, ...]:
    """The phases of a request that took `e2e` seconds. `ttft` is that of the outermost observer, if it told one."""
    if len(sides.outers) <= 1 and not sides.stages and len(sides.sides) == 1:
        (side,) = sides.sides
        if len(side.engines) == 1 and side.role != "decode" and not (side.stages or side.outers):
            plain = of_one_engine(e2e, sides.outers[0] if sides.outers else None, side.engines[0])
            if plain is not None and side.role == "unified":
                return plain
    claims: dict[str, _Claim] = {}
    unknown: dict[str, str] = {}
    for side in sides.sides:
        _claim_side(side, claims)
    if sides.together:
        _untangle(sides, claims)
    _claim_transfer(sides, claims, unknown, waited)
    _claim_gateway(e2e, sides, claims)
    _claim_unseen(e2e, sides, ttft, claims, unknown)
    return _settled(e2e, claims, unknown, sum(map(_at_the_door, sides.sides)))


def of_one_engine(e2e: float, outer: RequestPart | None, engine: RequestPart) -> tuple[RequestPhase, ...] | None:
    """The phases where one engine told queue, prefill and decode, and at most one observer stood around it, which is
    most of what comes in. None where it is not as simple as that."""
    told = engine.phases
    queue, prefill, decode = told.get("queue"), told.get("prefill"), told.get("decode")
    start, ttft = engine.start, engine.ttft
    if queue is None or prefill is None or decode is None or len(told) != 3 or start is None or ttft is None:
        return None
    around = 0.0
    if outer is not None:
        whole = length(engine)
        around = e2e - whole if whole is not None else -1.0
    rest = e2e - around - queue - prefill - decode
    if not (rest >= 0.0 and around >= 0.0 and queue >= 0.0 and prefill >= 0.0 and decode >= 0.0):
        return None  # also where one is no number, which is in the rest
    if not 0.0 <= ttft < LONGEST:
        return None
    first = start + ttft
    phases: tuple[RequestPhase, ...] = (
        RequestPhase("queue", queue, "measured", first - prefill - queue),
        RequestPhase("prefill", prefill, "measured", first - prefill),
        RequestPhase("decode", decode, "measured", first),
    )
    if rest > NOTHING:
        phases = (*phases, _unattributed(rest, ttft - queue - prefill))
    if outer is not None:
        phases = (RequestPhase("gateway", around, "derived", outer.start, BY_DIFFERENCE), *phases)
    return phases


def _claim_side(side: EngineShare, claims: dict[str, _Claim]) -> None:
    """What an engine and its stages measured."""
    main = side.main
    told = {
        name: s for name, s in (main.phases if main else {}).items() if name in PHASES and known_seconds(s) is not None
    }
    if main is not None:
        for name, start in _starts(main, told).items():
            claims.setdefault(name, _Claim()).add(told[name], start)
    for name, (seconds, start) in _covered(side.stages, side.role).items():
        if name not in told and name != "gateway":
            claims.setdefault(name, _Claim()).add(seconds, start)
    if main is not None and "decode" not in claims and side.role != "prefill":
        whole, ttft = length(main), known_seconds(main.ttft)
        if whole is not None and ttft is not None and whole >= ttft and main.start is not None:
            claims.setdefault("decode", _Claim()).add(whole - ttft, main.start + ttft, BY_TTFT)
    silent = main is None or (side.role == "prefill" and not told)
    if silent and side.role in ("prefill", "decode") and side.role not in claims and side.seconds is not None:
        overhead = sum(known_seconds(s.phases.get("gateway")) or 0.0 for s in side.stages)
        whole = max(0.0, side.seconds - overhead)
        claims.setdefault(side.role, _Claim()).add(whole, side.start, SIDE_AS_A_WHOLE.format(role=side.role))


def _starts(part: RequestPart, told: Mapping[str, float]) -> dict[str, float | None]:
    """When its phases began by its own clock: with the first token prefill ends and decode begins."""
    found: dict[str, float | None] = dict.fromkeys(told)
    ttft = known_seconds(part.ttft)
    if part.start is None or ttft is None:
        return found
    at = part.start + ttft
    if "decode" in told:
        found["decode"] = at
    for name in ("prefill", "queue"):
        if name in told:
            at -= told[name]
            found[name] = at
    return found


def _covered(stages: Sequence[RequestPart], role: str = "") -> dict[str, tuple[float, float | None]]:
    """The time in which some stage of a phase was going on, and when it began: ranks tell the same stage each."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for part in stages:
        in_queue = role == "decode" and (part.system, part.name) in QUEUE_OF_DECODE_SIDE
        for name, seconds in ({"queue": sum(part.phases.values())} if in_queue else part.phases).items():
            if name in PHASES and known_seconds(seconds) is not None and part.start is not None:
                spans.setdefault(name, []).append((part.start, part.start + seconds))
    found: dict[str, tuple[float, float | None]] = {}
    for name, some in spans.items():
        some.sort()
        total, until = 0.0, float("-inf")
        for start, end in some:
            total += max(0.0, end - max(start, until))
            until = max(until, end)
        found[name] = total, some[0][0]
    return found


def _untangle(sides: OrderedShares, claims: dict[str, _Claim]) -> None:
    """The decode side waits for KV while the prefill side works: that time is counted once."""
    waits = claims.get("kv_wait")
    prefill = next((side for side in sides.sides if side.role == "prefill"), None)
    worked = _covered(prefill.stages) if prefill is not None else {}
    if waits is None or not worked:
        return
    own = worked["kv_wait"][0] if "kv_wait" in worked else 0.0
    meanwhile = sum(seconds for seconds, _ in worked.values())
    waits.seconds = own + max(0.0, waits.seconds - own - meanwhile)
    waits.source, waits.why = "derived", MEANWHILE


def _claim_transfer(sides: OrderedShares, claims: dict[str, _Claim], unknown: dict[str, str], waited: Waited) -> None:
    """A decode engine that tells its queue time alone pulls the KV within it. Where nothing waited for capacity, the
    queue time is the pull."""
    side = next((side for side in sides.sides if side.role == "decode"), None)
    main = side.main if side is not None else None
    if main is None or "transfer" in claims or "kv_wait" in claims:
        return
    queue = known_seconds(main.phases.get("queue"))
    if queue is None or main.start is None:
        return
    crowded = waited(main.engine, main.start, main.start + queue)
    if crowded is None or crowded:
        unknown["transfer"] = IN_QUEUE.format(why=SOME_WAITED if crowded else NOBODY_KNOWS)
        return
    began = _starts(main, {name: main.phases[name] for name in main.phases if name in PHASES}).get("queue")
    claims["queue"].seconds = max(0.0, claims["queue"].seconds - queue)
    claims["transfer"] = _Claim(queue, "derived", began, PULLED)


def _claim_gateway(e2e: float, sides: OrderedShares, claims: dict[str, _Claim]) -> None:
    """Time before and behind the engine."""
    if not sides.outers:
        return
    start = sides.outers[0].start
    worked = [side.seconds for side in sides.sides if side.engines]
    seconds = [one for one in worked if one is not None]
    inside = seconds[-1] if seconds and sides.together else sum(seconds)
    fits = len(seconds) == 1 or inside <= e2e  # else the sides worked at the same time, and nobody says how long
    if sides.is_whole and None not in worked and fits:
        claims["gateway"] = _Claim(max(0.0, e2e - inside), "derived", start, BY_DIFFERENCE)
        return
    told = [p.phases.get("gateway") for p in sides.outers]
    told += [s.phases.get("gateway") for side in sides.sides for s in side.stages]
    told.append(_covered(sides.stages).get("gateway", (None, None))[0])
    spent = sum(known_seconds(one) or 0.0 for one in told)
    if spent:
        claims["gateway"] = _Claim(spent, "measured", start)


def _claim_unseen(
    e2e: float, sides: OrderedShares, ttft: float | None, claims: dict[str, _Claim], unknown: dict[str, str]
) -> None:
    """What no engine told: the decode time where the first token's is known, and that the rest is unknown."""
    if "decode" not in claims and sides.outers and ttft is not None and ttft <= e2e:
        start = sides.outers[0].start
        claims["decode"] = _Claim(e2e - ttft, "derived", start + ttft if start is not None else None, OUTER_TTFT)
    for name in ("queue", "prefill", "decode"):
        if name not in claims:
            unknown.setdefault(name, UNTOLD)


def _at_the_door(side: EngineShare) -> float:
    """Seconds from a request's arrival at an engine to the engine's own queue, with the first token's way back to the
    API server in them; 0 where it does not tell enough. What it was spent on is not told, so it is no phase."""
    main = side.main
    if main is None:
        return 0.0
    ttft, queue, prefill = (
        known_seconds(main.ttft),
        known_seconds(main.phases.get("queue")),
        known_seconds(main.phases.get("prefill")),
    )
    return 0.0 if ttft is None or queue is None or prefill is None else max(0.0, ttft - queue - prefill)


@cache
def _unknown(name: str, why: str) -> RequestPhase:
    """A phase of which nothing is known. Records share it: there are as many as phases and reasons."""
    return RequestPhase(name, None, "unknown", None, why)


def _unattributed(seconds: float, at_the_door: float) -> RequestPhase:
    """What is left, and where most of it was."""
    return RequestPhase(UNATTRIBUTED, seconds, "derived", None, AT_THE_DOOR if 2 * at_the_door > seconds else "")


def _settled(
    e2e: float, claims: Mapping[str, _Claim], unknown: Mapping[str, str], at_the_door: float
) -> tuple[RequestPhase, ...]:
    """Phases in order, which add up: the engine's word comes before what is derived from it."""
    left = e2e
    granted: dict[str, float] = {}
    for name in (*PHASES[1:], "gateway"):
        if name in claims:
            granted[name] = min(claims[name].seconds, left)
            left -= granted[name]
    phases = []
    for name in PHASES:
        claim = claims.get(name)
        if claim is not None:
            cut = claim.seconds - granted[name] > NOTHING
            source: PhaseSource = "derived" if cut else claim.source
            phases.append(RequestPhase(name, granted[name], source, claim.start, CUT if cut else claim.why))
        elif name in unknown:
            phases.append(_unknown(name, unknown[name]))
    if left > NOTHING:
        phases.append(_unattributed(left, at_the_door))
    return tuple(phases)
