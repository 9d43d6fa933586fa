"""What the parsers besides that of pages read: recorded and shipped examples, and how they are made strange.

A text is changed byte by byte, line by line, by tokens that mean something to its parser, and by pieces of other
examples. What is compressed or has checksums (captures, chunks of history) is unpacked, changed, and packed again, so
that the change reaches what lies behind.
"""

from __future__ import annotations

import json
import random
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import zstandard

from kvitals.rules.loader import load
from kvitals.series.history import codec, wal_codec
from kvitals.series.recordings import MAGIC, CaptureReader, Record
from kvitals.series.types import STALE
from tests.fuzz.attacked import Mutate
from tests.unit.otlp.span_fixtures import protobuf

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
MAX_BYTES = 60_000
MARK = b"\n=== next message\n"
CHUNK, END = 0x4B4E4843, 0x444E4543  # of series/recordings.py

PROMQL_TOKENS = (
    b"rate(", b"[5m]", b"[1y:1ms]", b" by (", b" offset -5m", b"{", b"}", b"=~\"", b"(a+)+", b".*.*.*.*.*.*.*.*x",
    b" and ", b" or ", b" unless ", b" on (engine) group_left (x) ", b"histogram_quantile(0.99, ", b"((((((((",
    b"))))))))", b"-", b"^", b"NaN", b"Inf", b"1e308", b"1e-320", b"0x", b"bool ", b" == ", b"\xf0\x9f\x99\x82",
    b"\\", b"'", b"`", b"@ end()", b"#", b"sum(", b"topk(5, ", b"label_replace(", b", \"$1\", \"x\", \"(.*)\")",
    b"absent_over_time(", b"le", b"__name__", b"quantile_over_time(2, ", b"kvitals_ttft_seconds_bucket",
    b"predict_linear(", b", 1e9)", b"timestamp(", b"!", b"\x00",
)  # fmt: skip
PATTERN_TOKENS = (
    b"(.?){40}", b"(.??){40}", b"(a?){30}a{30}", b"(?P<b>", b"(?<b>", b"(?i)", b"(?s:", b"(?U)", b"(?=", b"(?x)", b"(",
    b")", b"|", b"*", b"+", b"?", b"??", b"{1,100}", b"{1000}", b"{,2}", b".", b".*", b".+", b"^", b"$", b"[", b"]",
    b"[^", b"[[:alpha:]]", b"\\pL", b"\\p{Greek}", b"\\Q", b"\\E", b"\\C", b"\\1", b"\\b", b"\\x{10FFFF}", b"\\z",
    b"\\", b"a", b"aaaaaaaaaaaaaaaaaaaa", b"\n", b"\x00", b"\xc3\xa9", b"\xed\xa0\x80", b"-", b"0",
)  # fmt: skip
YAML_TOKENS = (
    b"&a ", b"*a", b"<<: *a", b"!!python/object/apply:os.system [x]", b"!!binary ", b"- ", b": ", b"{", b"}", b"[",
    b"]", b"|\n", b">-\n", b"? ", b"---\n", b"...\n", b"%YAML 1.1\n", b"\t", b"null", b"yes", b"0o7", b"1_000",
    b".inf", b".nan", b"2001-01-01", b"$scope", b"${", b"{$x}", b"kvitals:", b"ENG01", b"when: ", b"for: ",
    b"99999d", b"params: ", b"expr: ", b"\xef\xbb\xbf",
)  # fmt: skip
JSON_TOKENS = (
    b"null", b"true", b"-1", b"1e999", b"1e308", b"0.1", b"9223372036854775808", b"\"\"", b"\"NaN\"", b"{", b"}",
    b"[", b"]", b",", b":", b"\\u0000", b"\\ud800", b"\xff", b"\"stringValue\":", b"\"intValue\":\"1\"",
    b"\"traceId\":\"00\"", b"\"attributes\":[", b"2026-11-21T00:00:00Z", b"\"status\"", b"1795276814.1",
    b"\"tenant.id\"", b"\n",
)  # fmt: skip
TOML_TOKENS = (
    b"[[target]]\n", b"[agent]\n", b"url = ", b"\"http://[::1]:1\"", b"\"file:///etc/passwd\"",
    b"interval = \"0s\"\n", b"[", b"]", b"=", b"\"\"\"", b"'''", b"1979-05-27", b"inf", b"nan", b"-1",
    b"99999999999999999999", b"{", b"}", b"true", b"\"-5m\"", b"\"1e99d\"", b"[params.KVC05]\n", b"[[mute]]\n",
    b"\x00", b"\\u0000", b"# ", b"targets_file = [\"/dev/zero\"]\n",
)  # fmt: skip
BINARY_TOKENS = (
    b"\x00", b"\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80" * 10, b"\xc0", b"\xc1",
    b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\x00" * 7, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\x91" * 600, b"\x81\xa4type", b"\xabBlockStored",
    b"\xacBlockRemoved", b"\xb0AllBlocksCleared", b"\xcb\x7f\xf8" + b"\x00" * 6, b"\xcb\x7f\xf0" + b"\x00" * 6,
    b"\x0a\x05",
)  # fmt: skip


def havoc(data: bytes, rng: random.Random, tokens: Sequence[bytes], others: Sequence[bytes]) -> bytes:
    """A few changes at random."""
    for _ in range(rng.choice((1, 1, 2, 3, 5, 10))):
        data = _CHANGES[rng.randrange(len(_CHANGES))](data, rng, tokens, others)
    return data[:MAX_BYTES]


def _flip(data: bytes, rng: random.Random, tokens: Sequence[bytes], others: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _token(data: bytes, rng: random.Random, tokens: Sequence[bytes], others: Sequence[bytes]) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice(tokens) + data[at + rng.choice((0, 0, 1, 4, 20)) :]


def _cut(data: bytes, rng: random.Random, tokens: Sequence[bytes], others: Sequence[bytes]) -> bytes:
    start = rng.randint(0, len(data))
    return data[:start] + data[start + rng.choice((1, 2, 10, 100, len(data))) :]


def _repeat(data: bytes, rng: random.Random, tokens: Sequence[bytes], others: Sequence[bytes]) -> bytes:
    start = rng.randint(0, len(data))
    part = data[start : start + rng.choice((1, 5, 40, 400))]
    return data[:start] + part * rng.choice((2, 3, 50)) + data[start:]


def _splice(data: bytes, rng: random.Random, tokens: Sequence[bytes], others: Sequence[bytes]) -> bytes:
    other = rng.choice(others)
    start, at = rng.randint(0, len(other)), rng.randint(0, len(data))
    return data[:at] + other[start : start + rng.choice((5, 50, 500))] + data[at:]


def _number(data: bytes, rng: random.Random, tokens: Sequence[bytes], others: Sequence[bytes]) -> bytes:
    """Four bytes are another number, of a kind that lengths are."""
    if len(data) < 8:
        return data
    at = rng.randrange(len(data) - 4)
    number = rng.choice((0, 1, 255, 256, 65_535, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1))
    return data[:at] + struct.pack(rng.choice(("<I", ">I")), number) + data[at + 4 :]


_CHANGES = (_flip, _token, _token, _token, _cut, _repeat, _splice, _splice, _number)


def text(tokens: Sequence[bytes], seeds: Callable[[], list[bytes]]) -> Mutate:
    """Changes of what is not compressed."""
    return lambda data, rng: havoc(data, rng, tokens, seeds())


# OTLP


@cache
def otlp_seeds() -> list[bytes]:
    """Recorded requests in JSON, and the same in protobuf."""
    found = []
    for path in sorted((TESTS / "fixtures" / "spans").glob("*.jsonl")):
        for line in path.read_bytes().splitlines()[:6]:
            found += [line[:MAX_BYTES], protobuf(json.loads(line))[:MAX_BYTES]]
    return found


# KV events


@cache
def kv_event_seeds() -> list[bytes]:
    """Recorded messages of publishers, a few in a session."""
    found = []
    for path in sorted((TESTS / "fixtures" / "kv_events").glob("*.hex")):
        payloads = [bytes.fromhex(line.partition("\t")[2]) for line in path.read_text().splitlines() if line]
        found += [MARK.join(payloads[at : at + 3])[:MAX_BYTES] for at in range(0, len(payloads), 3)]
    return found


# Request logs


@cache
def log_seeds() -> list[bytes]:
    found = []
    for path in sorted((TESTS / "fixtures" / "request_logs").glob("*.jsonl")):
        lines = path.read_bytes().splitlines()
        found += [b"\n".join(lines[at : at + 3]) for at in range(0, min(len(lines), 60), 3)]
    return found


# PromQL


@cache
def promql_seeds() -> list[bytes]:
    """What rules and signals ask."""
    knowledge = load()
    asked = [signal.expr for signal in knowledge.signals.values()] + [rule.when for rule in knowledge.rules.values()]
    asked += [one.query for rule in knowledge.rules.values() for one in rule.evidence]
    return [one.replace("$window", "1m").replace("$scope", "engine").encode() for one in asked]


def pattern_seeds() -> list[bytes]:
    """Patterns that people write, and those that engines that go back never end, each with values."""
    written = ("kvitals_.*", "a|b|c", "host\\.name:8000/[0-9]+", "(?P<b>.*)-(.+)", "(?i)up", "[a-f0-9]{1,40}", "(x+)+y")
    return [f"{one}\nkvitals_up\naaaaaaaaaaaaaaaaaaaaaaaaaaaa\n".encode() for one in written]


# Rules, signals, levers, maps of logs, the configuration


@cache
def rule_seeds() -> list[bytes]:
    """Some of what ships, under codes and names that are free, with the kind of file before it."""
    found = []
    for kind, pattern, old, new in (
        ("codes", "codes/*.yaml", rb"(?m)^code: \w+", b"code: ZZZ99"),
        ("levers", "levers/*.yaml", rb"(?m)^name: \S+", b"name: zzz-lever"),
        ("signals", "signals/*.yaml", rb"$^", b""),
    ):
        files = [path.read_bytes() for path in sorted((ROOT / "rules").glob(pattern))[::4]]
        found += [f"{kind}\n".encode() + re.sub(old, new, one, count=1)[:MAX_BYTES] for one in files]
    return found


@cache
def config_seeds() -> list[bytes]:
    """The example with every table, of the documentation, whole and a table at a time."""
    page = (ROOT / "docs" / "configuration.md").read_bytes()
    example = page.partition(b"```toml\n")[2].partition(b"\n```")[0]
    tables = [b"[" + one for one in example.split(b"\n[") if one]
    return [example, *tables]


# Captures


@cache
def capture_seeds() -> list[bytes]:
    """Some records of recordings of every sense, as chunks without their checksums: see `packed`."""
    found = []
    for path in (
        *sorted((ROOT / "app" / "demo").glob("*.kvcap"))[:2],
        *sorted((TESTS / "captures").glob("*/*.kvcap"))[::6],
    ):
        by_sense: dict[str, list[Record]] = {}
        with CaptureReader.open(path) as reader:
            header = msgspec.json.encode(reader.header)
            for number, record in enumerate(reader):
                some = by_sense.setdefault(record.sense, [])
                if len(some) < 2 and len(record.payload) < 20_000:
                    some.append(record)
                if number > 200:
                    break
        found += [header + MARK + MARK.join(map(msgspec.msgpack.encode, some)) for some in by_sense.values()]
    return found


def packed(session: bytes) -> bytes:
    """A capture with that header and those records, with lengths and checksums that fit."""
    header, *records = session.split(MARK)
    raw = b"".join(struct.pack("<I", len(one)) + one for one in records)
    frames = _frame(CHUNK, zstandard.ZstdCompressor().compress(raw), len(raw))
    frames += _frame(END, struct.pack("<I", len(records)), 4)
    return MAGIC + struct.pack("<HHII", 1, 0, len(header), zlib.crc32(header)) + header + frames


def _frame(kind: int, body: bytes, raw: int) -> bytes:
    head = struct.pack("<IIII", kind, len(body), raw, zlib.crc32(body))
    return head + struct.pack("<I", zlib.crc32(head)) + body


# History


@cache
def history_seeds() -> list[bytes]:
    """Chunks, time axes and ticks, unpacked, with one byte before each that says which it is."""
    rng = np.random.default_rng(1)
    values = np.cumsum(rng.integers(0, 9, (40, 6)).astype(float), axis=0)
    values[:, 4] = rng.random(40)
    values[5:9, 2] = STALE
    times = np.cumsum(rng.integers(4900, 5100, 40))
    changes = [
        wal_codec.RowChanges(number, times[:3], np.array([0, 1, 1, 2]), np.arange(4, dtype=np.uint32), rng.random(4))
        for number in range(3)
    ]
    plain = zstandard.ZstdDecompressor().decompress
    found = [b"c" + plain(codec.encode(some)) for some in (values, values[:, :1], values[:1], np.full((3, 3), 7.0))]
    found += [
        b"t" + plain(codec.encode_times(times)),
        b"k" + plain(wal_codec.pack(changes)),
        b"k" + plain(wal_codec.pack(changes[:1])),
    ]
    return found
