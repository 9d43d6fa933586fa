"""One record of a request's parts: each number from who knows it best, and who that was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from kvitals.agent.requests.observation import OUTER, RequestPart
from kvitals.agent.requests.phases import Waited, account, of_one_engine
from kvitals.agent.requests.record import RequestPhase, RequestRecord, SpanRef
from kvitals.agent.requests.roles import OrderedShares, instant, known_seconds, length, sort

MAX_SOURCES = 4_000
"""Different values of a field that are kept; almost all records share a few."""

SIDES = ("prefill", "decode")

MAX_SPANS = 8
"""Of a record."""

SOURCED = ("e2e", "ttft", "tenant", "itl", "prompt_tokens", "cached_tokens", "external_tokens", "output_tokens")
"""Fields of which a record tells who said them."""

KINDS = ("request", "response", "room", "remote")

BOTH_SIDES = "engine, both sides"
BY_TOKENS = "engine, decode over tokens"
NOT_USED = "not used: more than the prompt"

_NO_ENGINES: dict[str, str] = {}


class EngineFactSource(Protocol):
    """What is known of engines besides what observers say."""

    def label(self, name: str) -> str:
        """The `engine` label of what observers call so; empty where no watched engine is meant."""

    def role(self, name: str) -> str:
        """Prefill or decode; empty where that is not known."""


class Assembly:
    """Makes records."""

    def __init__(self, engines: EngineFactSource, waited: Waited) -> None:
        self._engines = engines
        self._waited = waited
        # Records share what is the same in many of them.
        self._sources: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
        self._plain_sources: dict[tuple[str, ...], dict[str, str]] = {}
        self._unified: dict[str, dict[str, str]] = {}
        self._systems: dict[tuple[str, str], tuple[str, ...]] = {}

    def record(self, parts: Sequence[RequestPart], whole: bool) -> RequestRecord:
        """The record of one request. `whole`: nothing was given up on."""
        plain = self._plain(parts) if whole else None
        return plain if plain is not None else self._thorough(parts, whole)

    def _plain(self, parts: Sequence[RequestPart]) -> RequestRecord | None:
        """The same, soon, for one engine's part that tells all phases and at most one observer around it, which is most
        of what comes in. None where it is not as simple as that."""
        engine, outer = parts[0], None
        if len(parts) == 2:
            outer = parts[1]
            if engine.observer != "engine":
                engine, outer = outer, engine
            if outer.observer not in OUTER or outer.role or (outer.tenant and engine.tenant):
                return None
        elif len(parts) > 2:
            return None
        head = engine if outer is None else outer
        e2e = length(head)
        if engine.observer != "engine" or e2e is None or (engine.role or self._engines.role(engine.engine)) in SIDES:
            return None
        phases = of_one_engine(e2e, outer, engine)
        ids = head.ids
        if phases is None or len(ids) < 2 or head.start is None or head.end is None or not ids[0].startswith("trace:"):
            return None
        if not ids[1].startswith("request:"):
            return None
        return self._lone_record(head, e2e, phases) if outer is None else self._plain_record(head, engine, e2e, phases)

    def _plain_record(
        self, head: RequestPart, engine: RequestPart, e2e: float, phases: tuple[RequestPhase, ...]
    ) -> RequestRecord | None:
        """Of an engine's part and of the one around it."""
        said: str = head.observer
        itl_said = said
        ttft, itl = known_seconds(head.ttft), known_seconds(head.itl)
        if itl is None:
            tokens = engine.output_tokens
            if known_seconds(engine.itl) is not None or not tokens:
                return None
            itl_said = BY_TOKENS if tokens > 1 else ""
            itl = engine.phases["decode"] / (tokens - 1) if tokens > 1 else None
        prompt, prompt_said = _count(said, head.prompt_tokens, engine.prompt_tokens)
        cached, cached_said = _count(said, head.cached_tokens, engine.cached_tokens)
        external, external_said = _count(said, head.external_tokens, engine.external_tokens)
        output, output_said = _count(said, head.output_tokens, engine.output_tokens)
        if not _is_part(cached, prompt) or not _is_part(external, prompt):
            return None
        tenant = head.tenant or engine.tenant
        who = (
            said,
            said if ttft is not None else "engine",
            (said if head.tenant else "engine") if tenant else "",
            itl_said,
            prompt_said,
            cached_said,
            external_said,
            output_said,
        )
        status, name = head.status, head.engine
        label = self._engines.label(engine.engine) or self._engines.label(name) or engine.engine or name
        trace = head.ids[0][6:]
        return RequestRecord(  # by place, since more than 15 names make Python slow
            head.ids[1][8:],
            head.start or 0.0,
            head.end or 0.0,
            True,
            trace,
            self._one_engine(label),
            tenant,
            head.session or engine.session,
            engine.model or head.model,
            head.lora or engine.lora,
            phases,
            ttft if ttft is not None else known_seconds(engine.ttft),
            e2e,
            itl,
            _seconds(head.itl_max, engine.itl_max),
            _seconds(head.itl_p99, engine.itl_p99),
            prompt,
            cached,
            external,
            output,
            status if status is not None else engine.status,
            head.finish or engine.finish,
            head.error or engine.error,
            head.aborted or engine.aborted,
            self._observers(head.system, engine.system),
            _spans(trace, (head, engine)),
            self._shared_plain(who),
        )

    def _lone_record(self, engine: RequestPart, e2e: float, phases: tuple[RequestPhase, ...]) -> RequestRecord | None:
        """Of an engine's part that nobody was around."""
        itl, itl_said, tokens = known_seconds(engine.itl), "engine", engine.output_tokens
        if itl is None:
            if not tokens:
                return None
            itl_said = BY_TOKENS if tokens > 1 else ""
            itl = engine.phases["decode"] / (tokens - 1) if tokens > 1 else None
        prompt, cached, external = engine.prompt_tokens, engine.cached_tokens, engine.external_tokens
        if not _is_part(cached, prompt) or not _is_part(external, prompt):
            return None
        who = (
            "engine",
            "engine",
            "engine" if engine.tenant else "",
            itl_said,
            "engine" if prompt is not None else "",
            "engine" if cached is not None else "",
            "engine" if external is not None else "",
            "engine" if tokens is not None else "",
        )
        return RequestRecord(  # by place, since more than 15 names make Python slow
            engine.ids[1][8:],
            engine.start or 0.0,
            engine.end or 0.0,
            True,
            engine.ids[0][6:],
            self._one_engine(self._engines.label(engine.engine) or engine.engine),
            engine.tenant,
            engine.session,
            engine.model,
            engine.lora,
            phases,
            engine.ttft,
            e2e,
            itl,
            known_seconds(engine.itl_max),
            known_seconds(engine.itl_p99),
            prompt,
            cached,
            external,
            tokens,
            engine.status,
            engine.finish,
            engine.error,
            engine.aborted,
            self._observers(engine.system, engine.system),
            (SpanRef("engine", engine.span, "", engine.parent),) if engine.span else (),
            self._shared_plain(who),
        )

    def _one_engine(self, label: str) -> dict[str, str]:
        found = self._unified.get(label)
        if found is None:
            if len(self._unified) >= MAX_SOURCES:
                self._unified.clear()
            found = self._unified[label] = {"unified": label} if label else {}
        return found

    def _observers(self, one: str, other: str) -> tuple[str, ...]:
        found = self._systems.get((one, other))
        if found is None:
            if len(self._systems) >= MAX_SOURCES:
                self._systems.clear()
            found = self._systems[one, other] = tuple(sorted({one, other}))
        return found

    def _thorough(self, parts: Sequence[RequestPart], whole: bool) -> RequestRecord:
        """The record of whatever came."""
        sides = sort(parts, self._engines.role)
        sources: list[tuple[str, str]] = []
        inner = [p for side in reversed(sides.sides) for p in (*side.outers, *side.engines)]  # decode first
        ranked = [*sides.outers, *inner] if sides.outers else inner or list(parts)
        e2e = _e2e(sides, sources)
        ttft = _ttft(sides, sources)
        phases: tuple[RequestPhase, ...] = ()
        if e2e is not None:
            outer = next((t for p in sides.outers if (t := known_seconds(p.ttft)) is not None), None)
            phases = account(e2e, sides, outer, self._waited)
        start, end = _times(ranked, parts)
        head = ranked[0]
        engines = self._labels(sides)
        first = _First(ranked)
        systems = sorted({p.system for p in parts})
        prompt = _tokens("prompt_tokens", sides, ranked, sources, _prompt)
        # Choices of one prompt look it up once each, and the later ones find what the first one computed or got.
        choices = _of_engines("prompt_tokens", sides, _alike)
        cached, external = (
            _of_prompt(name, _tokens(name, sides, ranked, sources, of_choices if choices else _sum), prompt, sources)
            for name, of_choices in (("cached_tokens", min), ("external_tokens", max))
        )
        return RequestRecord(
            id=_id(ranked, parts),
            trace=_trace(ranked),
            start=start,
            end=end,
            complete=_is_complete(parts, sides, whole),
            engines=engines,
            tenant=_text("tenant", first, sources),
            session=first.text("session"),
            model=next((p.model for p in reversed(ranked) if p.model), ""),
            lora=first.text("lora"),
            phases=phases,
            ttft=ttft,
            e2e=e2e,
            itl=_itl(ranked, sides, sources),
            itl_max=first.seconds("itl_max"),
            itl_p99=first.seconds("itl_p99"),
            prompt_tokens=prompt,
            cached_tokens=cached,
            external_tokens=external,
            output_tokens=_tokens("output_tokens", sides, ranked, sources, _sum),
            status=first.number("status"),
            finish=first.text("finish"),
            error=first.text("error"),
            aborted=head.aborted or any(p.aborted for p in ranked),
            observers=self._observers(systems[0], systems[-1]) if len(systems) < 3 else tuple(systems),
            spans=_spans(_trace(ranked), ranked),
            sources=self._shared(sources),
        )

    def _labels(self, sides: OrderedShares) -> dict[str, str]:
        """Role -> engine. An observer before a single engine names it where the engine's own name says nothing."""
        found = {}
        for side in sides.sides:
            names = [p.engine for p in (*side.engines, *side.outers, *side.stages) if p.engine]
            if len(sides.sides) == 1:
                names += [p.engine for p in sides.outers if p.engine]
            known_ones = (label for name in names if (label := self._engines.label(name)))
            found[side.role] = next(known_ones, "") or next(iter(names), "")
        if not sides.sides:
            named = [p.engine for p in sides.outers if p.engine]
            if named:
                found["unified"] = self._engines.label(named[-1]) or named[-1]
        return {role: label for role, label in found.items() if label} or _NO_ENGINES

    def _shared_plain(self, who: tuple[str, ...]) -> dict[str, str]:
        """Of a plain request, by who told each of SOURCED."""
        found = self._plain_sources.get(who)
        if found is None:
            if len(self._plain_sources) >= MAX_SOURCES:
                self._plain_sources.clear()
            told = [(name, said) for name, said in zip(SOURCED, who, strict=True) if said]
            found = self._plain_sources[who] = self._shared(told)
        return found

    def _shared(self, sources: list[tuple[str, str]]) -> dict[str, str]:
        key = tuple(sources)
        found = self._sources.get(key)
        if found is None:
            if len(self._sources) >= MAX_SOURCES:
                self._sources.clear()
            found = self._sources[key] = dict(sources)
        return found


class _First:
    """Fields of the first part that tells them."""

    def __init__(self, ranked: Sequence[RequestPart]) -> None:
        self.ranked = ranked

    def text(self, name: str) -> str:
        for part in self.ranked:
            value: str = getattr(part, name)
            if value:
                return value
        return ""

    def number(self, name: str) -> int | None:
        for part in self.ranked:
            value: int | None = getattr(part, name)
            if value is not None:
                return value
        return None

    def seconds(self, name: str) -> float | None:
        for part in self.ranked:
            value = known_seconds(getattr(part, name))
            if value is not None:
                return value
        return None


def _count(said: str, outer: int | None, engine: int | None) -> tuple[int | None, str]:
    """A count that an observer `said`, else the engine; and who that was, and who says otherwise."""
    if outer is None:
        return (None, "") if engine is None else (engine, "engine")
    return outer, said if engine is None or engine == outer else f"{said}; engine says {engine}"


def _seconds(outer: float | None, engine: float | None) -> float | None:
    if outer is None and engine is None:
        return None
    found = known_seconds(outer)
    return found if found is not None else known_seconds(engine)


def _e2e(sides: OrderedShares, sources: list[tuple[str, str]]) -> float | None:
    """End to end, as the observer nearest to the client saw it."""
    for part in sides.outers:
        whole = length(part)
        if whole is not None:
            sources.append(("e2e", part.observer))
            return whole
    spent = [side.seconds for side in sides.sides]
    told = [seconds for seconds in spent if seconds is not None]
    if not told or None in spent:
        return None
    if len(told) == 1 or sides.together:
        sources.append(("e2e", "engine"))
        return told[-1]
    sources.append(("e2e", BOTH_SIDES))
    return sum(told)


def _ttft(sides: OrderedShares, sources: list[tuple[str, str]]) -> float | None:
    for part in sides.outers:
        ttft = known_seconds(part.ttft)
        if ttft is not None:
            sources.append(("ttft", part.observer))
            return ttft
    if not sides.sides:
        return None
    last = sides.sides[-1]
    ttft = next((t for p in (*last.outers, *last.engines) if (t := known_seconds(p.ttft)) is not None), None)
    if ttft is None or last.role == "prefill":
        return None
    if last.role == "unified" or sides.together:
        sources.append(("ttft", "engine"))
        return ttft
    before = [side.seconds for side in sides.sides[:-1]]
    if sides.outers or not before or None in before:
        return None  # the prefill side is missing, or the client's observer saw no first token
    sources.append(("ttft", BOTH_SIDES))
    return ttft + sum(seconds for seconds in before if seconds is not None)


def _itl(ranked: Sequence[RequestPart], sides: OrderedShares, sources: list[tuple[str, str]]) -> float | None:
    for part in ranked:
        itl = known_seconds(part.itl)
        if itl is not None:
            sources.append(("itl", part.observer))
            return itl
    main = sides.sides[-1].main if sides.sides else None
    if main is None or main.output_tokens is None or main.output_tokens < 2:
        return None
    decode = known_seconds(main.phases.get("decode"))
    if decode is None:
        return None
    sources.append(("itl", BY_TOKENS))
    return decode / (main.output_tokens - 1)


def _tokens(
    name: str,
    sides: OrderedShares,
    ranked: Sequence[RequestPart],
    sources: list[tuple[str, str]],
    of_engine: Callable[[list[int]], int],
) -> int | None:
    """A count from the response's usage, else the engine's; where they differ, both are told."""
    told: list[tuple[str, int]] = []
    for part in sides.outers:
        value: int | None = getattr(part, name)
        if value is not None:
            told.append((part.observer, value))
    engine = _of_engines(name, sides, of_engine)
    if engine is not None:
        told.append(("engine", engine))
    if not told:
        return None
    who, count = told[0]
    for other, value in told[1:]:
        if value != count:
            who = f"{who}; {other} says {value}"
            break
    sources.append((name, who))
    return count


def _of_engines(name: str, sides: OrderedShares, of_engine: Callable[[list[int]], int]) -> int | None:
    """What engines say, of a pair the decode side, which gives the answer."""
    for side in reversed(sides.sides):
        main = side.main
        same = [p for p in side.engines if main is not None and p.system == main.system]  # not who is around it
        for parts in (side.outers[:1], same, side.engines):
            values = [value for p in parts if (value := getattr(p, name)) is not None]
            if values:
                return of_engine(values)
    return None


def _is_part(count: int | None, prompt: int | None) -> bool:
    """Whether so many tokens can be of the prompt, as far as is known."""
    return count is None or prompt is None or count <= prompt


def _of_prompt(name: str, count: int | None, prompt: int | None, sources: list[tuple[str, str]]) -> int | None:
    """A count of the prompt's tokens. One of more than the prompt has is none, and its source says so."""
    if _is_part(count, prompt):
        return count
    who = sources.pop([field for field, _ in sources].index(name))[1]
    sources.append((name, f"{who}; {NOT_USED}"))
    return None


def _alike(counts: list[int]) -> int:
    """1 where there are several that are the same."""
    return int(len(counts) > 1 and len(set(counts)) == 1)


def _prompt(counts: list[int]) -> int:
    """Choices have one prompt, several prompts of one request hardly the same number of tokens."""
    return counts[0] if len(set(counts)) == 1 else sum(counts)


def _sum(counts: list[int]) -> int:
    return sum(counts)


def _text(name: str, first: _First, sources: list[tuple[str, str]]) -> str:
    """The first that is told; another one's other word is told with it."""
    who = value = ""
    for part in first.ranked:
        other: str = getattr(part, name)
        if other and not value:
            who, value = part.observer, other
        elif other and other != value:
            who = f"{who}; {part.observer} says {other}"
            break
    if value:
        sources.append((name, who))
    return value


def _times(ranked: Sequence[RequestPart], parts: Sequence[RequestPart]) -> tuple[float, float]:
    """Start by the outermost observer's clock, and the end; where nobody told them, when the parts came."""
    head, came = ranked[0], [p.seen for p in parts]
    start, end = (instant(head.start), instant(head.end)) if head.observer in OUTER else (None, None)
    for told in (ranked, parts):
        if start is None:
            start = min((t for p in told if (t := instant(p.start)) is not None), default=None)
        if end is None:
            end = max((t for p in told if (t := instant(p.end)) is not None), default=None)
    first = start if start is not None else end if end is not None else min(came)
    last = end if end is not None else max(first, *came)
    return first, max(first, last)


def _id(ranked: Iterable[RequestPart], parts: Sequence[RequestPart]) -> str:
    """What the request is called, by the observer nearest to the client first."""
    ids = [one.partition(":") for part in (*ranked, *parts) for one in part.ids]
    for kind in KINDS:
        for found, _, value in ids:
            if found == kind:
                return value
    head = next(iter(ranked))
    trace = _trace([head])
    return f"{trace}-{head.span}".strip("-") or "unnamed"


def _trace(ranked: Iterable[RequestPart]) -> str:
    for part in ranked:
        for one in part.ids:
            if one.startswith("trace:"):
                return one[6:]
    return ""


def _spans(whole: str, ranked: Iterable[RequestPart]) -> tuple[SpanRef, ...]:
    """The spans that observers told in, those around the engines first, the outermost of them before all. `whole` is
    the record's trace."""
    outer: list[SpanRef] = []
    inner: list[SpanRef] = []
    for part in ranked:
        if part.span and part.observer != "stage" and (trace := _trace((part,))):
            ref = SpanRef(part.observer, part.span, "" if trace == whole else trace, part.parent)
            (outer if part.observer in OUTER else inner).append(ref)
    if len(inner) > 1:
        inner.sort(key=lambda ref: (ref.trace, ref.span))  # they may have come in any order
    return tuple((outer + inner)[:MAX_SPANS])


def _is_complete(parts: Sequence[RequestPart], sides: OrderedShares, whole: bool) -> bool:
    """Whether an engine told of it, or it never got that far; and of a pair both sides."""
    if not whole or not any(part.ids for part in parts):
        return False
    if sides.is_whole:
        return True
    turned_away = any(p.status is not None and p.status >= 400 for p in sides.outers)
    return turned_away and not sides.sides
