"""A signal compiled for one set of windows: its expressions, its gate, and what it reads.

The evaluator, the Prometheus source, recording rules, boards, `check` and the authoring checks read a signal through
this module, so that `$window` and `$scope` are expanded, and "enough samples" is decided, in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from kvitals.rules.model import SCOPES, SIGNAL_PREFIX, Samples, Scope, Signal
from kvitals.series.promql import (
    Binary,
    Call,
    Expr,
    Matching,
    NumberLiteral,
    Range,
    Selector,
    Subquery,
    expand,
    parse,
    selectors,
)
from kvitals.series.promql.batch import reads_at_once
from kvitals.series.promql.check import mark_checked
from kvitals.series.promql.nodes import rebuild
from kvitals.series.promql.rewrite import map_children

HALF_SAMPLE = 0.5
"""Extrapolation makes fractions of whole counts, so that "at least 20 samples" is met from 19.5 on."""
POINTS = 12
"""Of a subquery over a window, at least. A step in seconds would leave two of them in the shortest windows."""
LONGEST_STEP_MS = 5000
"""Of a subquery: a quarter of an hour has 180 points, so that a minute of a recording still has a dozen."""
MAX_COMPILED = 2048
"""Signals that stay compiled: some 350 ship, for the windows of rules and of boards and as templates of others."""
FROM_NOTHING = frozenset({"absent", "scalar", "time", "vector"})
"""Functions that have a value without any series."""


@dataclass(frozen=True)
class WindowDurations:
    """The durations that `$window` and `$baseline` stand for, as PromQL writes them."""

    fast: str = "1m"
    slow: str = "15m"
    baseline: str = "1h"

    def values(self, window: str, scope: Scope) -> dict[str, str]:
        """The value of each `$name` in an expression over the window `fast` or `slow`, about entities of a scope."""
        length = self.fast if window == "fast" else self.slow
        return {
            "window": length,
            "resolution": step_of(length),
            "baseline": self.baseline,
            "scope": ", ".join(SCOPES[scope]),
        }


def step_of(window: str) -> str:
    """The step of a subquery over a window."""
    return f"{max(1, min(int(_seconds(window) * 1000 / POINTS), LONGEST_STEP_MS))}ms"


NOMINAL = WindowDurations()
"""For those who ask what a signal reads, which no window's length changes."""


def sample_gate(samples: Samples) -> float:
    """The count from which on a signal has enough samples."""
    return samples.min - HALF_SAMPLE


@dataclass(frozen=True)
class CompiledSignal:
    """A signal's expressions. `samples` counts what it rests on; None where it has no gate."""

    signal: Signal
    expr: Expr
    samples: Expr | None
    known_reads: list[frozenset[Selector]] | None = field(default=None, repr=False, compare=False)
    """`reads`, where it is known before."""

    @property
    def exprs(self) -> list[Expr]:
        """The value, and what counts its samples."""
        return [self.expr] if self.samples is None else [self.expr, self.samples]

    @property
    def enough(self) -> Expr | None:
        """The count of samples where it is enough, absent elsewhere; None where the signal has no gate."""
        return self._compared(">=")

    @property
    def too_few(self) -> Expr | None:
        """The count of samples where it is not enough, absent elsewhere; None where the signal has no gate."""
        return self._compared("<")

    @property
    def gated(self) -> Expr:
        """The value where there are enough samples, absent elsewhere."""
        if (enough := self.enough) is None:
            return self.expr
        return Binary("and", self.expr, enough, matching=Matching(on=True, labels=SCOPES[self.signal.scope]))

    @cached_property
    def reads(self) -> list[frozenset[Selector]]:
        """The signal has no value unless of each of these sets at least one selector finds a series."""
        return selections(self.expr) if self.known_reads is None else self.known_reads

    @cached_property
    def samples_reads(self) -> list[frozenset[Selector]]:
        """The same for what counts its samples; nothing where it has no gate."""
        return [] if self.samples is None else selections(self.samples)

    @cached_property
    def reads_at_once(self) -> list[Expr]:
        """What the value and its gate read, for an `ExpressionBatch`."""
        return [read for expr in self.exprs for read in reads_at_once(expr)]

    @cached_property
    def needs(self) -> list[frozenset[str]]:
        """The same by metric."""
        return needed_metrics(self.expr)

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The names of all series that the value and its gate read, signals among them, in the order of reading."""
        return tuple(dict.fromkeys(use.name for expr in self.exprs for use in selectors(expr)))

    @property
    def signals(self) -> frozenset[str]:
        """The signals that it is made of."""
        return frozenset(name.removeprefix(SIGNAL_PREFIX) for name in self.metrics if name.startswith(SIGNAL_PREFIX))

    def _compared(self, op: str) -> Expr | None:
        if self.samples is None or self.signal.samples is None:
            return None
        return Binary(op, self.samples, NumberLiteral(sample_gate(self.signal.samples)))


@lru_cache(maxsize=MAX_COMPILED)
def compile_signal(
    signal: Signal, windows: WindowDurations = NOMINAL, parsed: Callable[[str], Expr] = parse
) -> CompiledSignal:
    """A signal for these windows. `parsed` turns text into an expression. Raises PromQLError.

    What it returns is shared by all that ask for the same: generators of boards and rules ask thousands of times.
    """
    values = windows.values(signal.window, signal.scope)
    samples = parsed(expand(signal.samples.expr, values)) if signal.samples is not None else None
    return CompiledSignal(signal, parsed(expand(signal.expr, values)), samples)


STAND_INS = WindowDurations("12345ms", "12469ms", "12589ms")
"""Durations that no expression has, each with a step of its own: what is compiled with them is a template."""


def with_windows(templates: Mapping[str, CompiledSignal], windows: WindowDurations) -> Mapping[str, CompiledSignal]:
    """The signals that were compiled with `STAND_INS`, for these windows, each when it is first asked for. Much cheaper
    than to parse them again: of most signals an engine has no series."""
    lengths = (
        (STAND_INS.fast, windows.fast),
        (STAND_INS.slow, windows.slow),
        (STAND_INS.baseline, windows.baseline),
    )
    seconds = {_seconds(stand_in): _seconds(length) for stand_in, length in lengths}
    seconds |= {_seconds(step_of(stand_in)): _seconds(step_of(length)) for stand_in, length in lengths}
    return _InWindows(templates, _Durations(seconds))


class _InWindows(Mapping[str, CompiledSignal]):
    """Templates with their durations replaced when they are first asked for."""

    def __init__(self, templates: Mapping[str, CompiledSignal], durations: _Durations) -> None:
        self._templates, self._durations = templates, durations
        self._compiled: dict[str, CompiledSignal] = {}

    def __getitem__(self, name: str) -> CompiledSignal:
        compiled = self._compiled.get(name)
        if compiled is None:
            compiled = self._compiled[name] = self._durations.compiled(self._templates[name])
        return compiled

    def __iter__(self) -> Iterator[str]:
        return iter(self._templates)

    def __len__(self) -> int:
        return len(self._templates)


@lru_cache(maxsize=256)
def _seconds(length: str) -> float:
    """The seconds of a duration as PromQL writes it."""
    window = parse(f"x[{length}]")
    assert isinstance(window, Range)
    return window.range


class _Durations:
    """Replaces ranges, steps and offsets: seconds -> seconds.

    What several expressions have in common is replaced once; what does not change is shared with the template.
    """

    def __init__(self, seconds: Mapping[float, float]) -> None:
        self._seconds = seconds
        self._replaced: dict[Expr, Expr] = {}

    def compiled(self, template: CompiledSignal) -> CompiledSignal:
        """The signal with the durations replaced; the template itself where it has none of them."""
        expr = self.checked(template.expr)
        samples = None if template.samples is None else self.checked(template.samples)
        if expr is template.expr and samples is template.samples:
            return template
        reads = [frozenset(map(self.selector, either)) for either in template.reads]
        return CompiledSignal(template.signal, expr, samples, reads)

    def checked(self, expr: Expr) -> Expr:
        """The same for an expression that is checked: other durations need no other check."""
        replaced = self.expr(expr)
        mark_checked(replaced)
        return replaced

    def expr(self, expr: Expr) -> Expr:
        """The expression with the durations replaced."""
        replaced = self._replaced.get(expr)
        if replaced is None:
            replaced = self._replaced[expr] = self._replace(expr)
        return replaced

    def selector(self, selector: Selector) -> Selector:
        """The selector with its offset replaced."""
        offset = self._seconds.get(selector.offset)
        return selector if offset is None else replace(selector, offset=offset)

    def _replace(self, expr: Expr) -> Expr:
        if isinstance(expr, Selector):
            return self.selector(expr)
        if isinstance(expr, Range):
            selector = self.selector(expr.selector)
            if selector is expr.selector and expr.range not in self._seconds:
                return expr
            return rebuild(expr, selector=selector, range=self._of(expr.range))
        changed = map_children(expr, self.expr)
        if isinstance(changed, Subquery) and {changed.range, changed.step, changed.offset} & self._seconds.keys():
            step = None if changed.step is None else self._of(changed.step)
            return rebuild(changed, range=self._of(changed.range), step=step, offset=self._of(changed.offset))
        return changed

    def _of(self, seconds: float) -> float:
        return self._seconds.get(seconds, seconds)


def needed_metrics(expr: Expr) -> list[frozenset[str]]:
    """Metrics of which at least one of each set must be there for an expression to have a value."""
    return list(dict.fromkeys(frozenset(one.name for one in either) for either in selections(expr)))


def selections(expr: Expr) -> list[frozenset[Selector]]:
    """Selectors of which at least one of each set must find a series for an expression to have a value."""
    if isinstance(expr, Selector):
        return [frozenset((expr,))] if expr.name else []
    if isinstance(expr, Call) and expr.func in FROM_NOTHING:
        return []
    if isinstance(expr, Binary) and expr.op == "or":
        return [left | right for left in selections(expr.left) for right in selections(expr.right)]
    if isinstance(expr, Binary) and expr.op == "unless":
        return selections(expr.left)
    return list(dict.fromkeys(one for child in expr.children() for one in selections(child)))
