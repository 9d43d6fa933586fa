"""Metrics pages: Prometheus text 0.0.4 and OpenMetrics 1.0, parsed cheaply when they hardly change.

An engine's page is the same text from scrape to scrape but for some numbers. So a `PageParser` keeps the
lines of the last good page and compares the new ones with them at the speed of C. Where a line changed and
its beginning (name and labels) did not, only the number is parsed. Where lines came or went, the *layout* of
the page is built anew; beginnings that were seen before are not parsed again even then.

The result never depends on the path: a page parsed after another equals the page parsed alone, which the
tests hold against random edits. Anything that is not a sound page is an `ExpositionError`; the last good page
stays what the next one is compared with. One bad line spoils its page, as in Prometheus, since half a page
looks like an engine that lost half its metrics.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import compress
from operator import ne

import msgspec
import numpy as np
import numpy.typing as npt

from series.types import Floats

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
_ESCAPE = re.compile(r'\\([\\n"])')
_EXEMPLAR = re.compile(r'[ \t]#[ \t]*+\{(?:[^"}]|"(?:[^"\\]|\\.)*+")*+\}([ \t]++[^ \t]++){1,2}[ \t]*+')

_NOT_METRICS = (
    "This is not a metrics page. Check the URL: vLLM and SGLang serve metrics at /metrics of the port that"
    " takes requests (SGLang only with --enable-metrics)."
)
_NO_HEAD = b"\n"  # no line begins so

_EMPTY = "The page is empty. The engine may still be starting; if it persists, see its log."
_MALFORMED = "The page is no sound Prometheus text; if a proxy sits in between, scrape the engine directly."
_TRUNCATED = "The connection broke or a proxy cut the answer off; if it persists, scrape the engine directly."
_TOO_LARGE = "That is more than an engine's page has; check that the URL is an engine's, or raise the limit."


@dataclass(frozen=True)
class Limits:
    """What a page may ask of us."""

    page_bytes: int = 16 * 2**20
    line_bytes: int = 64 * 2**10
    samples: int = 50_000
    labels: int = 64  # of one series


DEFAULT_LIMITS = Limits()


class ExpositionError(Exception):
    """A page that cannot be used. `reason` is for machines, the text is for people and says what to do."""

    def __init__(self, reason: str, message: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.reason = reason
        self.line = line


@dataclass(frozen=True)
class Layout:
    """Which series a page has, in the order of the page. The same object as long as that does not change."""

    series: list[Series]
    types: list[str]  # by series: counter, gauge, histogram, summary, ... or unknown
    duplicates: int  # samples of a series that the page had before; the first one counts
    created: int  # `_created` samples, which are dropped: they are start times and never move


class Page(msgspec.Struct, frozen=True):
    """What a page says that the last good one did not.

    fresh: the layout is new, so every sample is listed.
    indices[K], values[K]: the samples on changed lines; an index is a position in `layout.series`.
    timestamped: samples on the whole page that carried a time of their own, which is ignored.
    """

    layout: Layout
    fresh: bool
    indices: Indices
    values: Floats
    timestamped: int

    @property
    def samples(self) -> int:
        """Samples on the whole page."""
        return len(self.layout.series)


@dataclass
class _Memo:
    """The last good page, line by line."""

    open_metrics: bool
    lines: list[bytes]
    heads: list[bytes]  # name and labels as they are written; `_NO_HEAD` for a line without a sample
    samples: list[int]  # position in layout.series; -1 for a line that gives none
    layout: Layout
    timestamped: set[int]  # line numbers
    slack: int  # bytes that a tail may have before a line could be too long


class PageParser:
    """Parses the pages of one target, one after another."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._memo: _Memo | None = None
        self._known: dict[bytes, Series] = {}  # by head, of the last good page

    def parse(self, body: bytes, content_type: str = "") -> Page:
        """Parse a page. Raises ExpositionError; the parser can go on with the next page then.

        Reasons: empty, not_metrics, too_large, truncated, bad_encoding, line_too_long, too_many_samples,
        too_many_labels, malformed.
        """
        open_metrics = "openmetrics" in content_type
        lines = self._lines(body, content_type, open_metrics)
        memo = self._memo
        if memo is not None and memo.open_metrics == open_metrics and len(memo.lines) == len(lines):
            page = self._patch(memo, lines)
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
        lines = body.split(b"\n")
        rest = lines.pop()
        if rest:
            _Builder(self._limits, open_metrics, {}).add(0, [*lines, rest][0])  # "Not found" is not truncated
            raise ExpositionError("truncated", f"The page ends within a line. {_TRUNCATED}", len(lines) + 1)
        if open_metrics and (not lines or lines[-1].strip() != b"# EOF"):
            raise ExpositionError("truncated", f"The page lacks its `# EOF`. {_TRUNCATED}", len(lines))
        return lines

    def _patch(self, memo: _Memo, lines: list[bytes]) -> Page | None:
        """The page as a change of the last one; None where the layout may differ."""
        differs = list(map(ne, lines, memo.lines))
        heads = list(compress(memo.heads, differs))
        news = list(compress(lines, differs))
        tails = list(map(bytes.removeprefix, news, heads))
        joined = b"".join(tails)
        # The lengths add up only where every line began with its head.
        if len(b"".join(heads)) + len(joined) != len(b"".join(news)):
            return None
        if len(joined) > memo.slack and max(map(len, tails)) > memo.slack:
            return None
        # Python reads 1_000 as a number, the format does not.
        values = None if b"_" in joined else _numbers(tails)
        if values is None or memo.timestamped:
            values = self._tails(memo, list(compress(range(len(lines)), differs)), tails)
            if values is None:
                return None
        memo.lines = lines
        indices = np.fromiter(compress(memo.samples, differs), np.intp, len(tails))
        if memo.layout.duplicates or memo.layout.created:
            kept = indices >= 0
            indices, values = indices[kept], values[kept]
        return Page(memo.layout, False, indices, values, len(memo.timestamped))

    def _tails(self, memo: _Memo, changed: list[int], tails: list[bytes]) -> Floats | None:
        """The values where some lines carry more than a number; None where a line is not sound."""
        values: list[float] = []
        timestamped: list[bool] = []
        for tail in tails:
            try:
                value, timed = _tail(tail, memo.open_metrics)
            except ValueError:
                return None
            values.append(value)
            timestamped.append(timed)
        memo.timestamped.difference_update(changed)
        memo.timestamped.update(compress(changed, timestamped))
        return np.array(values, dtype=np.float64)

    def _rebuild(self, body: bytes, lines: list[bytes], open_metrics: bool) -> Page:
        """The page parsed from scratch but for the heads that are known."""
        try:
            body.decode()
        except UnicodeDecodeError as error:
            at = body.count(b"\n", 0, error.start) + 1
            raise ExpositionError("bad_encoding", f"The page is not UTF-8 text. {_NOT_METRICS}", at) from None
        builder = _Builder(self._limits, open_metrics, self._known)
        for number, line in enumerate(lines):
            builder.add(number, line)
        layout, samples, values = builder.finish()
        timestamped = {number for number in builder.timestamped if samples[number] >= 0}
        slack = self._limits.line_bytes - max(map(len, builder.heads), default=0)
        self._memo = _Memo(open_metrics, lines, builder.heads, samples, layout, timestamped, slack)
        self._known = builder.seen
        return Page(layout, True, np.arange(len(values)), np.array(values, dtype=np.float64), len(timestamped))


class _Builder:
    """Collects the lines of one page into a layout."""

    def __init__(self, limits: Limits, open_metrics: bool, known: dict[bytes, Series]) -> None:
        self._limits = limits
        self._open_metrics = open_metrics
        self._known = known
        self._types: dict[str, str] = {}
        self._found: list[tuple[int, Series, float]] = []  # line number, series, value
        self._ended = False
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
        if len(self._found) >= self._limits.samples:
            message = f"The page has more than {self._limits.samples} samples. {_TOO_LARGE}"
            raise ExpositionError("too_many_samples", message, number + 1)
        try:
            head, series, value, timed = self._sample(line)
        except ValueError as error:
            raise self._unsound(str(error), number) from None
        if len(series[1]) > self._limits.labels:
            message = f"The series has more than {self._limits.labels} labels. {_TOO_LARGE}"
            raise ExpositionError("too_many_labels", message, number + 1)
        self.seen[head] = series
        self.heads.append(head)
        self._found.append((number, series, value))
        if timed:
            self.timestamped.add(number)

    def finish(self) -> tuple[Layout, list[int], list[float]]:
        """The layout, the sample of each line (-1 for none), and the values."""
        layout = Layout([], [], 0, 0)
        duplicates = created = 0
        samples = [-1] * len(self.heads)
        values: list[float] = []
        types: dict[str, str] = {}
        seen: set[Series] = set()
        for number, series, value in self._found:
            name = series[0]
            if name not in types:
                types[name] = "created" if _is_created(name, self._types) else _type(name, self._types)
            if types[name] == "created":
                created += 1
            elif series in seen:
                duplicates += 1
            else:
                seen.add(series)
                samples[number] = len(values)
                values.append(value)
                layout.series.append(series)
                layout.types.append(types[name])
        return Layout(layout.series, layout.types, duplicates, created), samples, values

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


def _not_text(body: bytes, content_type: str) -> bool:
    """Whether the page is of another kind altogether: HTML, JSON, protobuf."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in ("text/html", "application/json", "application/vnd.google.protobuf"):
        return True
    return body[:64].lstrip()[:1] in (b"<", b"{", b"[")


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
        if "_" not in word:
            return float(word)
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
    return (name[0], tuple(sorted((k, v) for k, v in labels.items() if v))), end


def _labels(text: str, at: int, labels: dict[str, str]) -> int:
    """Read labels up to the closing brace and return the place behind it. Raises ValueError."""
    while (close := _CLOSE.match(text, at)) is None:
        label = _LABEL.match(text, at)
        if label is None or (not label[3] and _CLOSE.match(text, label.end()) is None):
            raise ValueError(f"{text[at : at + 40]!r} is not a label")
        if label[1] in labels:
            raise ValueError(f"the label {label[1]} is there twice")
        labels[label[1]] = _unescape(label[2])
        at = label.end()
    return close.end()


def _unescape(value: str) -> str:
    if "\\" not in value:
        return value
    return _ESCAPE.sub(lambda m: "\n" if m[1] == "n" else m[1], value)


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
