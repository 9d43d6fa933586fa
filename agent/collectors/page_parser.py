"""Metrics pages: Prometheus text 0.0.4 and OpenMetrics 1.0, parsed cheaply when they hardly change.

An engine's page is the same text from scrape to scrape but for some numbers, and for most of its lines not even
that. So a `PageParser` knows the lines of a page that move and those that stand still. What stands still is compared
as one piece of text with that of the last good page. Of a line that moves only the number is parsed, once it
is certain that its head (name and labels) is the one that was there. A still line that changes becomes a
moving one, and a moving line that did not change for long becomes a still one. Where lines came or went, the
*layout* of the page is built anew; heads that were seen before are not parsed again even then.

The result never depends on the path: a page parsed after another equals the page parsed alone, which the
tests hold against random edits. Anything that is not a sound page is an `ExpositionError`; the last good page
stays what the next one is compared with. One bad line spoils its page, as in Prometheus, since half a page
looks like an engine that lost half its metrics.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from operator import ne

import msgspec
import numpy as np
import numpy.typing as npt

from kvitals.series.ascii_numbers import ascii_float
from kvitals.series.types import Floats

Indices = npt.NDArray[np.intp]

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A raw series: its name and its labels in order of name, those with an empty value left out."""

UNTYPED = "unknown"
_TYPES = frozenset(
    ("counter", "gauge", "histogram", "summary", "untyped", "unknown", "info", "stateset", "gaugehistogram")
)
_SUFFIXES = {
    "_bucket": ("histogram", "gaugehistogram"),
    "_sum": ("histogram", "summary"),
    "_count": ("histogram", "summary"),
    "_total": ("counter",),
    "_info": ("info",),
    "_gsum": ("gaugehistogram",),
    "_gcount": ("gaugehistogram",),
}

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*+")
_LABEL = re.compile(r'[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]|\\.)*+)"[ \t]*+(,?)')
_OPEN = re.compile(r"[ \t]*+\{")
_CLOSE = re.compile(r"[ \t]*+\}")
_BLANKS = re.compile(r"[ \t]++")
_EXEMPLAR = re.compile(r'[ \t]#[ \t]*+\{(?:[^"}]|"(?:[^"\\]|\\.)*+")*+\}([ \t]++[^ \t]++){1,2}[ \t]*+')

_NOT_METRICS = (
    "This is not a metrics page. Check the URL: vLLM and SGLang serve metrics at /metrics of the port that"
    " takes requests (SGLang only with --enable-metrics)."
)

_NO_HEAD = b"\n"  # no line begins so
_PATIENCE = 256  # pages after which a line that did not change stands still

_EMPTY = "The page is empty. The engine may still be starting; if it persists, see its log."
_MALFORMED = "The page is not valid Prometheus text; if a proxy sits in between, scrape the engine directly."
_TRUNCATED = "The connection broke, or a proxy cut the response off; if it persists, scrape the engine directly."
_TOO_LARGE = "An engine's page is smaller: check that the URL is an engine's, or raise the limit."

_SHARE = (
    "The pages of other targets use the memory that this page needs. Check what the target exposes, raise [agent] "
    "memory_limit, or watch fewer targets."
)


MAX_NAME_SERIES = 5_000
"""Series of one name on a page, and of one family within the window. A router with some hundred workers has fewer; a
label that never repeats has more."""


SERIES_BYTES = 900
"""What a series of a page takes here and in what the page means, beside its text and the window: measured."""


@dataclass(frozen=True)
class PageLimits:
    """What a page may ask of us."""

    page_bytes: int = 16 * 2**20
    line_bytes: int = 64 * 2**10
    lines: int = 200_000  # four for each sample: itself, HELP, TYPE and one to spare
    samples: int = 50_000
    names: int = 5_000  # each is compared with every engine map
    labels: int = 64  # of one series
    page_labels: int = 500_000  # of all series together
    name_series: int = MAX_NAME_SERIES  # of one name; those beyond it are counted and not kept


DEFAULT_LIMITS = PageLimits()


class ExpositionError(Exception):
    """A page that cannot be used. `reason` is for machines, the text is for people and says what to do."""

    def __init__(self, reason: str, message: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.reason = reason
        self.line = line


@dataclass(frozen=True)
class PageLayout:
    """Which series a page has, in the order of the page. The same object as long as that does not change."""

    series: list[Series]
    types: list[str]  # by series: counter, gauge, histogram, summary, ... or unknown
    duplicates: int  # samples of a series that the page had before; the first one counts
    created: int  # `_created` samples, which are dropped: they are start times and never move
    crowded: int = 0  # samples beyond the most of one name, which are left out
    held_bytes: int = 0  # what is kept for it until the next page with another layout, roughly
    twice: frozenset[int] = frozenset()  # positions in `series` of those that the page has more than once


class PageSamples(msgspec.Struct, frozen=True):
    """What a page says that the last good one did not.

    fresh: the layout is new, so every sample is listed.
    indices[K], values[K]: samples that may have changed; an index is a position in `layout.series`. Those of
    moving lines are always listed, so from page to page `indices` is mostly the same object. Not to be written.
    timestamped: samples on the whole page that carried a time of their own, which is ignored.
    """

    layout: PageLayout
    fresh: bool
    indices: Indices
    values: Floats
    timestamped: int

    @property
    def samples(self) -> int:
        """Samples on the whole page."""
        return len(self.layout.series) + self.layout.crowded


class _Memo:
    """The lines of the last good page: which of them move, and what they are."""

    def __init__(self, open_metrics: bool, heads: list[bytes], samples: list[int], layout: PageLayout) -> None:
        self.open_metrics = open_metrics
        self.heads = heads  # name and labels as they are written; `_NO_HEAD` for a line without a sample
        self.samples = samples  # position in layout.series; -1 for a line that gives none
        self.layout = layout
        self.longest = max(map(len, heads), default=0)
        self.timestamped: set[int] = set()  # line numbers

    def arrange(self, lines: Sequence[bytes], moves: list[bool]) -> None:
        """Set which lines move. `lines` are those of the page that is known."""
        self.moves = moves
        self.stays = [not moving for moving in moves]
        self.still = b"\n".join(compress(lines, self.stays))
        self.numbers = list(compress(range(len(moves)), moves))  # of moving lines
        self.moving_heads = list(compress(self.heads, moves))
        # What of a page's length is not tails of moving lines: line feeds, still lines, heads.
        still = sum(map(len, compress(lines, self.stays)))
        self.rest = len(lines) + still + sum(map(len, self.moving_heads))
        indices = np.fromiter(compress(self.samples, moves), np.intp, len(self.numbers))
        self.taken = indices >= 0
        self.all_taken = bool(self.taken.all())
        self.indices = indices[self.taken]
        self.indices.flags.writeable = False
        self.earlier: Floats | None = None  # values of the moving lines some pages ago
        self.pages = 0

    def move(self, lines: Sequence[bytes], still: bytes) -> bool:
        """Still lines differ: let them move from now on. False where one of them is no sample."""
        before, now = self.still.split(b"\n"), still.split(b"\n")
        changed = list(compress(compress(range(len(lines)), self.stays), map(ne, before, now)))
        if any(self.heads[number] is _NO_HEAD for number in changed):
            return False
        moves = list(self.moves)
        for number in changed:
            moves[number] = True
        self.arrange(lines, moves)
        return True

    def rest_if_still(self, lines: Sequence[bytes], values: Floats) -> None:
        """From time to time, let moving lines that did not change stand still."""
        self.pages += 1
        if self.earlier is None:
            self.earlier = values
        elif self.pages >= _PATIENCE:
            same = self.earlier.view(np.uint64) == values.view(np.uint64)
            if not same.any():
                self.earlier, self.pages = values, 0
                return
            moves = list(self.moves)
            for number in compress(self.numbers, same.tolist()):
                moves[number] = False
            self.arrange(lines, moves)


class PageParser:
    """Parses the pages of one target, one after another."""

    def __init__(self, limits: PageLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._memo: _Memo | None = None
        self._known: dict[bytes, Series] = {}  # by head, of the last good page
        self.room = float("inf")
        """Bytes that what is kept of a page may take."""
        self.is_rebuilt = False
        """Whether the last page was parsed as a whole."""

    @property
    def held_bytes(self) -> int:
        """What is kept of the last good page, roughly."""
        return self._memo.layout.held_bytes if self._memo is not None else 0

    def parse(self, body: bytes, content_type: str = "") -> PageSamples:
        """Parse a page. Raises ExpositionError; the parser can go on with the next page then.

        Reasons: empty, not_metrics, too_large, truncated, bad_encoding, line_too_long, too_many_lines,
        too_many_samples, too_many_names, too_many_labels, malformed, memory_share.

        May be called in a thread, one page at a time: no single step holds the interpreter for more than about 20 ms.
        """
        open_metrics = "openmetrics" in content_type
        self.is_rebuilt = False
        lines = self._lines(body, content_type, open_metrics)
        memo = self._memo
        if memo is not None and memo.open_metrics == open_metrics and len(memo.moves) == len(lines):
            page = self._follow(memo, body, lines)
            if page is not None:
                return page
        return self._rebuild(body, lines, open_metrics)

    def _lines(self, body: bytes, content_type: str, open_metrics: bool) -> list[bytes]:
        """The page's lines, each without its line feed, after what can be said of the page as a whole."""
        if len(body) > self._limits.page_bytes:
            raise ExpositionError("too_large", f"The page has {len(body)} bytes. {_TOO_LARGE}")
        if not body:
            raise ExpositionError("empty", _EMPTY)
        if _not_text(body, content_type):
            raise ExpositionError("not_metrics", _NOT_METRICS)
        # Counted before it is split, and only where there can be so many: counting takes time, too.
        most = self._limits.lines
        if len(body) > most and body.count(b"\n") > most:
            raise ExpositionError("too_many_lines", f"The page has more than {most} lines. {_TOO_LARGE}")
        lines = body.split(b"\n")
        rest = lines.pop()
        if rest:
            _Builder(self._limits, open_metrics, {}).add(0, [*lines, rest][0])  # "Not found" is not truncated
            raise ExpositionError("truncated", f"The page ends within a line. {_TRUNCATED}", len(lines) + 1)
        if open_metrics and (not lines or lines[-1].strip() != b"# EOF"):
            raise ExpositionError("truncated", f"The page ends without `# EOF`. {_TRUNCATED}", len(lines))
        return lines

    def _follow(self, memo: _Memo, body: bytes, lines: list[bytes]) -> PageSamples | None:
        """The page as it follows from the last one; None where the layout may differ."""
        still = b"\n".join(compress(lines, memo.stays))
        if still != memo.still and not memo.move(lines, still):
            return None
        tails = list(map(bytes.removeprefix, compress(lines, memo.moves), memo.moving_heads))
        joined = b"".join(tails)
        # The lengths add up only where every moving line begins with its head.
        if len(joined) != len(body) - memo.rest:
            return None
        room = self._limits.line_bytes - memo.longest
        if len(joined) > room and max(map(len, tails)) > room:
            return None
        # Python reads 1_000 as a number, the format does not.
        values = None if b"_" in joined else _numbers(tails)
        if values is None:
            values = self._tails(memo, tails)
            if values is None:
                return None
        elif memo.timestamped:
            memo.timestamped.difference_update(memo.numbers)
        indices = memo.indices
        page = PageSamples(
            memo.layout, False, indices, values if memo.all_taken else values[memo.taken], len(memo.timestamped)
        )
        memo.rest_if_still(lines, values)
        return page

    def _tails(self, memo: _Memo, tails: list[bytes]) -> Floats | None:
        """The values where some lines carry more than a number; None where a line is not sound."""
        try:
            found = [_tail(tail, memo.open_metrics) for tail in tails]
        except ValueError:
            return None
        memo.timestamped.difference_update(memo.numbers)
        timed = compress(memo.numbers, (timed for _, timed in found))
        memo.timestamped.update(number for number in timed if memo.samples[number] >= 0)
        return np.array([value for value, _ in found], dtype=np.float64)

    def _rebuild(self, body: bytes, lines: list[bytes], open_metrics: bool) -> PageSamples:
        """The page parsed from scratch but for the heads that are known."""
        self.is_rebuilt = True
        if not body.isascii():
            _check_encoding(lines)
        builder = _Builder(self._limits, open_metrics, self._known, self.room)
        for number, line in enumerate(lines):
            builder.add(number, line)
        layout, samples, values = builder.finish()
        moving = set(self._memo.moving_heads) if self._memo is not None else ()
        memo = self._memo = _Memo(open_metrics, builder.heads, samples, layout)
        memo.timestamped = {number for number in builder.timestamped if samples[number] >= 0}
        memo.arrange(lines, [head in moving for head in builder.heads])
        self._known = builder.seen
        indices = np.arange(len(values))
        return PageSamples(layout, True, indices, np.array(values, dtype=np.float64), len(memo.timestamped))


class _Builder:
    """Collects the lines of one page into a layout."""

    def __init__(
        self, limits: PageLimits, open_metrics: bool, known: dict[bytes, Series], room: float = float("inf")
    ) -> None:
        self._limits = limits
        self._room = room
        self._open_metrics = open_metrics
        self._known = known
        self._types: dict[str, str] = {}
        self._found: list[tuple[int, Series, float]] = []  # line number, series, value
        self._ended = False
        self._labels = 0
        self._samples = 0
        self._crowded = 0
        self._names: dict[str, int] = {}  # samples of each
        self.held_bytes = 0
        self.seen: dict[bytes, Series] = {}
        self.heads: list[bytes] = []
        self.timestamped: set[int] = set()

    def add(self, number: int, line: bytes) -> None:
        """Take one line, whose number counts from 0."""
        if len(line) > self._limits.line_bytes:
            message = f"The line has {len(line)} bytes. {_TOO_LARGE}"
            raise ExpositionError("line_too_long", message, number + 1)
        if self._ended:
            raise ExpositionError("malformed", f"Something follows `# EOF`. {_MALFORMED}", number + 1)
        stripped = line.strip()
        if not stripped or stripped.startswith(b"#"):
            self._comment(stripped.decode(errors="replace"))
            self.heads.append(_NO_HEAD)
            return
        if self._samples >= self._limits.samples:
            message = f"The page has more than {self._limits.samples} samples. {_TOO_LARGE}"
            raise ExpositionError("too_many_samples", message, number + 1)
        try:
            head, series, value, timed = self._sample(line)
        except ValueError as error:
            raise self._unsound(str(error), number) from None
        if len(series[1]) > self._limits.labels:
            message = f"The series has more than {self._limits.labels} labels. {_TOO_LARGE}"
            raise ExpositionError("too_many_labels", message, number + 1)
        self._samples += 1
        of_name = self._names[series[0]] = self._names.get(series[0], 0) + 1
        if len(self._names) > self._limits.names:
            message = f"The page has more than {self._limits.names} metric names. {_TOO_LARGE}"
            raise ExpositionError("too_many_names", message, number + 1)
        self._labels += len(series[1])
        if self._labels > self._limits.page_labels:
            message = f"The page has more than {self._limits.page_labels} labels. {_TOO_LARGE}"
            raise ExpositionError("too_many_labels", message, number + 1)
        self.heads.append(head)
        if of_name > self._limits.name_series:
            self._crowded += 1
            return
        self.held_bytes += SERIES_BYTES + len(head)
        if self.held_bytes > self._room:
            raise ExpositionError("memory_share", f"The page has {self._samples} series or more. {_SHARE}", number + 1)
        self.seen[head] = series
        self._found.append((number, series, value))
        if timed:
            self.timestamped.add(number)

    def finish(self) -> tuple[PageLayout, list[int], list[float]]:
        """The layout, the sample of each line (-1 for none), and the values."""
        found: list[Series] = []
        found_types: list[str] = []
        duplicates = created = 0
        samples = [-1] * len(self.heads)
        values: list[float] = []
        types: dict[str, str] = {}
        seen: dict[Series, int] = {}
        twice: set[int] = set()
        for number, series, value in self._found:
            name = series[0]
            if name not in types:
                types[name] = "created" if _is_created(name, self._types) else _type(name, self._types)
            if types[name] == "created":
                created += 1
            elif series in seen:
                duplicates += 1
                twice.add(seen[series])
            else:
                seen[series] = len(values)
                samples[number] = len(values)
                values.append(value)
                found.append(series)
                found_types.append(types[name])
        layout = PageLayout(found, found_types, duplicates, created, self._crowded, self.held_bytes, frozenset(twice))
        return layout, samples, values

    def _comment(self, text: str) -> None:
        words = text.split(None, 3)
        if words[:2] == ["#", "TYPE"] and len(words) == 4:
            self._types.setdefault(words[2], words[3].strip().lower())
        elif self._open_metrics and words == ["#", "EOF"]:
            self._ended = True

    def _sample(self, line: bytes) -> tuple[bytes, Series, float, bool]:
        """Head, series, value and whether there was a timestamp. Raises ValueError."""
        before, blank, after = line.rpartition(b" ")
        head = before + blank
        series = self._known.get(head)
        if series is not None:
            return head, series, *_tail(after, self._open_metrics)
        text = line.decode()
        series, at = _series(text)
        head = text[:at].encode()
        return head, self._known.get(head, series), *_tail(line[len(head) :], self._open_metrics)

    def _unsound(self, why: str, number: int) -> ExpositionError:
        """A page whose very first sample cannot be read is most likely no metrics page."""
        if not self._found and not self._types:
            return ExpositionError("not_metrics", _NOT_METRICS, number + 1)
        return ExpositionError("malformed", f"{why}. {_MALFORMED}", number + 1)


def _check_encoding(lines: list[bytes]) -> None:
    """Line by line: as one text, a page of 16 MB takes 64 MB where a single character is none of the first 65,536."""
    for number, line in enumerate(lines):
        try:
            line.decode()
        except UnicodeDecodeError:
            raise ExpositionError("bad_encoding", f"The page is not UTF-8 text. {_NOT_METRICS}", number + 1) from None


def _not_text(body: bytes, content_type: str) -> bool:
    """Whether the page is of another kind altogether: HTML, JSON, protobuf."""
    return "protobuf" in content_type or body[:64].lstrip()[:1] in (b"<", b"{", b"[")


def _numbers(tails: list[bytes]) -> Floats | None:
    """The tails as numbers, or None where one is more or other than a number."""
    try:
        return np.fromiter(map(float, tails), np.float64, len(tails))
    except ValueError:
        return None


def _tail(tail: bytes, open_metrics: bool) -> tuple[float, bool]:
    """The value behind a head and whether a timestamp follows it. Raises ValueError."""
    text = tail.decode("ascii", "replace")
    if open_metrics and "#" in text:
        text, found, exemplar = text.partition(" #")
        if not found or not _EXEMPLAR.fullmatch(found + exemplar):
            raise ValueError(f"{exemplar.strip()[:80]!r} is not an exemplar")
    words = text.split()
    if not 1 <= len(words) <= 2:
        raise ValueError("expected a value and perhaps a timestamp after the series")
    numbers = [_number(word) for word in words]
    return numbers[0], len(numbers) == 2


def _number(word: str) -> float:
    try:
        return ascii_float(word)
    except ValueError:
        pass
    raise ValueError(f"{word[:40]!r} is not a number")


def _series(text: str) -> tuple[Series, int]:
    """The series at the start of a line and where its value begins. Raises ValueError."""
    name = _NAME.match(text, len(text) - len(text.lstrip(" \t")))
    if name is None:
        raise ValueError(f"{text[:40]!r} does not start with a metric name")
    at = name.end()
    brace = _OPEN.match(text, at)
    labels: dict[str, str] = {}
    if brace is not None:
        at = _labels(text, brace.end(), labels)
    blanks = _BLANKS.match(text, at)
    end = blanks.end() if blanks is not None else at
    if brace is None and end == at:
        raise ValueError(f"no value after {name[0]}")
    return (sys.intern(name[0]), tuple(sorted((k, v) for k, v in labels.items() if v))), end


def _labels(text: str, at: int, labels: dict[str, str]) -> int:
    """Read labels up to the closing brace and return the place behind it. Raises ValueError."""
    while (close := _CLOSE.match(text, at)) is None:
        label = _LABEL.match(text, at)
        if label is None or (not label[3] and _CLOSE.match(text, label.end()) is None):
            raise ValueError(f"{text[at : at + 40]!r} is not a label")
        if label[1] in labels:
            raise ValueError(f"the label {label[1]} appears twice")
        labels[sys.intern(label[1])] = sys.intern(_unescape(label[2]))
        at = label.end()
    return close.end()


def _unescape(value: str) -> str:
    if "\\" not in value:
        return value
    between = value.split("\\\\")
    return "\\".join(part.replace('\\"', '"').replace("\\n", "\n") for part in between)


def _is_created(name: str, types: dict[str, str]) -> bool:
    """Whether a series is the start time that client libraries add to counters, histograms and summaries."""
    base = name.removesuffix("_created")
    if base == name:
        return False
    return types.get(base) in ("counter", "histogram", "summary") or types.get(f"{base}_total") == "counter"


def _type(name: str, types: dict[str, str]) -> str:
    """The type of a sample's family. `types` holds what the page declares."""
    found = types.get(name)
    if found is None:
        for suffix, allowed in _SUFFIXES.items():
            base = name.removesuffix(suffix)
            if base != name and types.get(base) in allowed:
                found = types[base]
                break
    return found if found in _TYPES else UNTYPED
