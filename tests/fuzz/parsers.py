"""What must hold whatever is read that is no page: it is taken or refused as documented, in time, and nothing of a text
that must not be kept comes through. A check raises AssertionError, or what the code under it raised."""

from __future__ import annotations

import io
import json
import math
import random
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import zstandard

from kvitals.agent.collectors import otlp_json, otlp_wire
from kvitals.agent.collectors.kv_events_wire import Wire
from kvitals.agent.collectors.otlp_wire import OtlpFormatError
from kvitals.agent.engine_resolver import SeenEngines
from kvitals.agent.ledger.block_table import Room
from kvitals.agent.ledger.engine import EngineLedger
from kvitals.agent.ledger.event import BlocksStored, KvEventsRecord
from kvitals.agent.ledger.owners import Owners
from kvitals.agent.ledger.prompt_lookups import Style
from kvitals.agent.node import Node
from kvitals.agent.records import decode, encode
from kvitals.agent.requests.lines import LineReader
from kvitals.agent.requests.observation import PartsRecord, RequestPart
from kvitals.agent.requests.request_pipeline import RequestSide
from kvitals.agent.requests.spans import SpanReader
from kvitals.agent.requests.tenant_names import TenantNames
from kvitals.config import Config, ConfigError, TenantsTable, load
from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.rules import loader
from kvitals.rules.log_map import shipped_log_map
from kvitals.series import patterns
from kvitals.series.history import codec, wal_codec
from kvitals.series.history.codec import DamagedError
from kvitals.series.patterns import PatternError
from kvitals.series.promql import PromQLError, QueryLimits, evaluate, parse
from kvitals.series.recordings import CaptureError, CaptureReader, RecordingLimits
from kvitals.series.slices import complete
from kvitals.series.types import METRIC_NAME, Labels
from kvitals.series.window import Window
from tests.fuzz import http1, inputs, texts
from tests.fuzz.attacked import Check, Target

MAX_TEXT = 4000
_TENANTS = TenantNames(TenantsTable(), b"k" * 32)
_NOW = 1_795_276_814.0


def otlp(payload: bytes) -> None:
    """A request gives parts or is refused; parts survive being written down, and become requests."""
    parts: list[RequestPart] = []
    groups = otlp_json.groups if payload[:1] == b"{" else otlp_wire.groups
    reader, dropped = SpanReader(_TENANTS, ("tenant.id",)), dict[str, int]()
    try:
        for group in complete(groups(payload)):
            reader.read(list(islice(group.spans, 2000)), group.scope, group.engine, _NOW, parts, dropped)
    except OtlpFormatError as error:
        assert str(error)
    _become_requests(parts)


def log_lines(text: bytes) -> None:
    """A line of any of the known logs gives a part or a reason."""
    parts: list[RequestPart] = []
    for name in ("nginx", "litellm", "envoy_ai_gateway"):
        reader = LineReader(shipped_log_map(name), _TENANTS)
        made = [reader.read(line, _NOW) for line in text.split(b"\n")[:50]]
        parts += [one for one in made if isinstance(one, RequestPart)]
    _become_requests(parts)


def _become_requests(parts: list[RequestPart]) -> None:
    """Parts are written down as captures have them, read, and stitched."""
    record = PartsRecord(t=_NOW, source="fuzz", parts=tuple(parts))
    written = encode(record)
    again = decode(written)
    assert isinstance(again, PartsRecord) and len(again.parts) == len(parts)
    assert all(len(msgspec.msgpack.encode(one)) < MAX_TEXT for one in parts), "a part with a long text"
    window = Window(600.0, 5000, 2000)
    engines = SeenEngines(window)
    side = RequestSide(window, {"node": "fuzz"}, engines, engines.waited, 50)
    side.feed(again)
    side.advance(_NOW + 30.0)
    side.flush()
    _numbers_are_numbers(window)


def _numbers_are_numbers(window: Window) -> None:
    for frame in window.select((), -math.inf, math.inf):
        counters = [
            at for at, labels in enumerate(frame.labels) if labels.name.endswith(("_total", "_count", "_bucket"))
        ]
        some = frame.values[:, counters]
        assert not (some[np.isfinite(some)] < 0).any() and not np.isinf(some).any()


def kv_events(session: bytes) -> None:
    """Messages give batches or a hole; their hashes are under our key; the ledger takes them."""
    wire = Wire(_TENANTS)
    messages = list(enumerate(session.split(inputs.MARK)[:20]))
    pieces = wire.read(messages)
    assert sum(one.hole + len(one.batches) for one in pieces) == len(messages)
    ledger = EngineLedger(Room(2000), Owners(), Style(next(iter(Style))), lambda look: None)
    ledger.set_pool(500)
    t = _NOW
    for piece in pieces:
        for batch in piece.batches:
            assert math.isfinite(batch.at)
            for event in batch.events:
                if isinstance(event, BlocksStored):
                    assert len(event.tenant) <= 20 and len(event.session) <= 20, "a name that is no pseudonym"
        record = KvEventsRecord(t=t, target="t", batches=tuple(piece.batches), lost=piece.hole)
        again = decode(encode(record))
        assert again == record
        ledger.feed(record)
        t += 1.0
        ledger.advance(t, True)
    ledger.flush()
    known = sum(len(table) for table in ledger.tables.values())
    assert known <= 2000


def promql(text: bytes) -> None:
    """A text is refused with a reason, or means the same when it is written again, and its answer comes in time."""
    query = text.decode(errors="replace")
    try:
        expr = parse(query)
    except PromQLError as error:
        assert str(error)
        return
    canonical = str(expr)
    assert str(parse(canonical)) == canonical
    with suppress(PromQLError):
        evaluate(expr, _window(), _NOW, limits=QueryLimits(samples=200_000, series=2000, seconds=2.0))


def pattern(text: bytes) -> None:
    """A pattern is refused with a reason, or matches hostile label values in time, the same with groups as without.

    The first line is the pattern, the others are values.
    """
    written, *values = text.decode(errors="surrogateescape").split("\n")[:10]
    try:
        found, parts = patterns.compile_pattern(written), patterns.groups(written)
    except PatternError as error:
        assert str(error)
        with suppress(PromQLError):
            parse(f"x{{a=~{json.dumps(written)}}}")
        return
    for value in (*values, *_VALUES):
        assert (parts.of(value[:500]) is not None) == found.matches(value[:500]), value[:500]
    matcher = json.dumps(written)
    with suppress(PromQLError):
        evaluate(f'{{__name__=~{matcher}}} or label_replace(up, "x", "$1${{b}}", "engine", {matcher})', _window(), _NOW)


_VALUES = ("", "a", "a" * 500, "ab" * 250, "é\n" * 100, "\ud800x", "kvitals_ttft_seconds_bucket")


@cache
def _window() -> Window:
    """Some series of every kind, one of which has a label that a hostile target chose."""
    rng, window = random.Random(1), Window(600.0, 5000)
    group = window.group("g")
    names = [{"engine": f"e{n}"} for n in range(4)] + [{"engine": "a" * 500}]
    families = ("kvitals_ttft_seconds_bucket", "kvitals_requests_running", "kvitals_generation_tokens_total", "up", "x")
    buckets = [{"le": "0.1"}, {"le": "1"}, {"le": "+Inf"}]
    columns = [
        group.column(Labels({METRIC_NAME: family, **labels, **more}))
        for family in families
        for labels in names
        for more in (buckets if family.endswith("_bucket") else [{}])
    ]
    for step in range(60):
        values = [rng.choice((step, step * 2.5, math.nan, math.inf, 0.0, -1.0)) for _ in columns]
        group.append(_NOW - 300.0 + 5.0 * step, [one for one in columns if one is not None], values)
    return window


def captures(session: bytes) -> None:
    """A recording is refused or read as far as it is whole, and every record in it goes through the node."""
    for data in (inputs.packed(session), session):
        try:
            with CaptureReader(
                io.BytesIO(data), "fuzz", RecordingLimits(chunk=4 << 20, record=2 << 20, total=8 << 20)
            ) as reader:
                _replay(reader)
        except (CaptureError, ConfigError) as error:
            assert str(error)


def _replay(reader: CaptureReader) -> None:
    node = Node(Config())
    node.expect(reader.header.meta)
    for record in islice(reader, 200):
        node.ingest_recorded(record)
    assert node.window.series <= node.window.max_series


def rules(text: bytes) -> None:
    """A file of rules, signals or levers is left out with its line, or can be judged by without a crash."""
    kind, _, content = text.partition(b"\n")
    name = kind.decode(errors="replace")
    if name not in ("codes", "signals", "levers"):
        name = "codes"
    shipped_ = _knowledge()
    known = loader.Knowledge(
        dict(shipped_.families),
        dict(shipped_.signals),
        dict(shipped_.rules),
        dict(shipped_.levers),
        [],
        dict(shipped_.files),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name, _file_name(content))
        path.parent.mkdir()
        path.write_bytes(content)
        loader._load_directory(known, Path(folder))
        assert all(str(one) for one in known.problems)
        added = {code: rule for code, rule in known.rules.items() if code not in shipped_.rules}
        if added:
            known.rules = added
            judge = Judge(known, Signals(known, _window()))
            judge.judge(EvaluationSpan(_NOW, 60.0))
            assert not judge.crashed, judge.crashed


def _file_name(content: bytes) -> str:
    """A rule's file is named after its code and name; where they can be read off, it is."""
    found = {}
    for line in content.split(b"\n"):
        key, colon, value = line.partition(b": ")
        if colon and key in (b"code", b"name"):
            found.setdefault(key, value.strip().decode(errors="replace")[:60])
    stem = "-".join(found[key] for key in (b"code", b"name") if key in found) or "x"
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in stem) + ".yaml"


@cache
def _knowledge() -> loader.Knowledge:
    return loader.load()


def config(text: bytes) -> None:
    """A configuration is taken or refused with every problem."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kvitals.toml")
        path.write_bytes(text)
        try:
            load(path, {})
        except ConfigError as error:
            assert str(error)


def history(data: bytes) -> None:
    """A chunk, a time axis or a tick is what was written, or damaged. What is damaged is told, and no bytes of others'
    memory come through: it is the same each time."""
    kind, content = data[:1], data[1:]
    body = zstandard.ZstdCompressor(write_checksum=True).compress(content)
    read = {b"c": _chunk, b"t": _times, b"k": _tick}.get(kind, _chunk)
    for one in (body, content):
        first, second = read(one), read(one)
        assert first == second, "not the same when it is read again"


def _chunk(data: bytes) -> bytes:
    try:
        return codec.decode(data).tobytes()
    except DamagedError as error:
        return str(error).encode()


def _times(data: bytes) -> bytes:
    try:
        return codec.decode_times(data, 40).tobytes()
    except DamagedError as error:
        return str(error).encode()


def _tick(data: bytes) -> bytes:
    try:
        tick = wal_codec.unpack(data)
        found = wal_codec.gather_rows([tick, replace(tick, after_loss=True)])
        wal_codec.series_in([tick, tick])
        log = wal_codec.DenseLog(np.arange(50, dtype=np.uint32), lambda _: True, 0, 1 << 60)
        log.add(tick)
        log.add(replace(tick, after_loss=True))
        for changes in found.values():
            wal_codec.ChangeColumns(changes).of(np.unique(changes.series)[:50].astype(np.uint32))
    except DamagedError as error:
        return str(error).encode()
    return repr({number: (one.times.tobytes(), one.values.tobytes()) for number, one in found.items()}).encode()


def _with(check: Check, seeds: Callable[[], list[bytes]], *tokens: bytes) -> Target:
    return Target(check, seeds, inputs.text(tokens, seeds))


TARGETS = {
    "otlp": _with(otlp, inputs.otlp_seeds, *inputs.JSON_TOKENS, *inputs.BINARY_TOKENS),
    "kv_events": _with(kv_events, inputs.kv_event_seeds, *inputs.BINARY_TOKENS),
    "log_lines": _with(log_lines, inputs.log_seeds, *inputs.JSON_TOKENS),
    "promql": _with(promql, inputs.promql_seeds, *inputs.PROMQL_TOKENS),
    "patterns": _with(pattern, inputs.pattern_seeds, *inputs.PATTERN_TOKENS)._replace(cpu_seconds=0.2),
    "captures": _with(captures, inputs.capture_seeds, *inputs.BINARY_TOKENS, *inputs.JSON_TOKENS),
    "rules": _with(rules, inputs.rule_seeds, *inputs.YAML_TOKENS, *inputs.PROMQL_TOKENS),
    "config": _with(config, inputs.config_seeds, *inputs.TOML_TOKENS),
    "http1_requests": _with(http1.requests, http1.request_seeds, *http1.TOKENS),
    "http1_responses": _with(http1.responses, http1.response_seeds, *http1.TOKENS),
    "history": _with(history, inputs.history_seeds, *inputs.BINARY_TOKENS),
    "chat": Target(texts.chat, texts.seeds, inputs.text(texts.TOKENS, texts.seeds)),
}
