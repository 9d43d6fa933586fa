from __future__ import annotations

import io
import random
import resource
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kvitals.series import recordings
from kvitals.series.recordings import CaptureError, CaptureReader, CaptureWriter, Damage, Record, RecordingLimits


def record(t: float, payload: bytes = b"page", sense: str = "scrape") -> Record:
    return Record(t, sense, "http://127.0.0.1:8000", payload)


def read(data: bytes, limits: RecordingLimits | None = None) -> tuple[list[Record], Damage | None]:
    reader = CaptureReader(io.BytesIO(data), "x.kvcap", limits)
    return list(reader), reader.damage


def written(path: Path, records: list[Record]) -> bytes:
    path.unlink(missing_ok=True)
    with CaptureWriter(path, version="0.1.0", meta={"host": "n1"}) as writer:
        for one in records:
            writer.write(one)
    return path.read_bytes()


def forged(*frames: bytes) -> bytes:
    """A capture of hand-made frames behind a proper header."""
    return recordings._header(recordings.Header("0", 0.0)) + b"".join(frames)


def frame_ends(data: bytes, at: int) -> set[int]:
    """Where a frame begins or ends, from the first one on."""
    ends = {at}
    while at < len(data):
        at += recordings._FRAME.size + recordings._FRAME.unpack_from(data, at)[1]
        ends.add(at)
    return ends


def chunk(raw: bytes) -> bytes:
    return recordings._frame(recordings._CHUNK, recordings._compress(raw), len(raw))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "incident.kvcap"


def test_header_tells_who_and_when(path: Path) -> None:
    with CaptureWriter(path, version="0.3.1", meta={"targets": ["a"], "clock": {"skew": 0.1}}):
        pass
    with CaptureReader.open(path) as reader:
        assert reader.header.kvitals == "0.3.1"
        assert reader.header.created > 1.7e9
        assert reader.header.meta == {"targets": ["a"], "clock": {"skew": 0.1}}
        assert list(reader) == []
        assert reader.damage is None
    assert b'"kvitals":"0.3.1"' in path.read_bytes()[:100]


@given(
    st.lists(
        st.builds(
            Record,
            t=st.floats(0, 4e9),
            sense=st.text(max_size=8),
            target=st.text(max_size=8),
            payload=st.binary(max_size=200),
        )
    )
)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, records: list[Record]) -> None:
    data = written(tmp_path_factory.mktemp("captures") / "a.kvcap", records)
    assert read(data) == (records, None)


def test_pages_that_change_little_cost_little(path: Path) -> None:
    """90 s of 65 kB pages, one in ten lines changing each second."""
    dice = random.Random(7)
    counts = [dice.randrange(100000) for _ in range(800)]
    records = []
    for second in range(90):
        for index in range(0, 800, 10):
            counts[index] += dice.randrange(50)
        lines = [
            f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="{i}",model_name="tiny"}} {n}'
            for i, n in enumerate(counts)
        ]
        records.append(record(1e9 + second, "\n".join(lines).encode()))
    data = written(path, records)
    assert len(records[0].payload) > 55_000
    assert len(data) < 120_000
    assert read(data) == (records, None)


def test_a_chunk_is_closed_by_record_time(path: Path) -> None:
    writer = CaptureWriter(path, version="0")
    for second in range(31):
        writer.write(record(1000.0 + second))
    records, problem = read(path.read_bytes())  # as after SIGKILL
    assert [one.t for one in records] == [1000.0 + second for second in range(30)]
    assert problem is not None and problem.kind == "unended"
    writer.close()
    assert len(read(path.read_bytes())[0]) == 31


def test_a_chunk_is_closed_when_the_clock_jumps_back_and_by_size(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "CHUNK_BYTES", 1000)
    records = [record(1000.0), record(10.0), *(record(11.0, bytes(400)) for _ in range(9))]
    data = written(path, records)
    assert read(data, RecordingLimits(chunk=1000)) == (records, None)


def test_what_follows_the_end_mark_is_reported(path: Path) -> None:
    """Two recordings in one file: the second was left out without a word."""
    records = [record(40.0 * n) for n in range(6)]
    data = written(path, records)
    for more in (data, b"\0"):
        text = "the recording continues after its end mark: the rest of the file was not read"
        assert read(data + more) == (records, Damage("continued", text))


def test_truncated_anywhere(path: Path) -> None:
    records = [record(40.0 * n, bytes([n]) * n) for n in range(6)]
    data = written(path, records)
    first_frame = data.index(struct.pack("<I", recordings._CHUNK))
    lengths, between = [], frame_ends(data, first_frame)
    for cut in range(len(data)):
        if cut < first_frame:
            with pytest.raises(CaptureError):
                read(data[:cut])
            continue
        found, problem = read(data[:cut])
        assert found == records[: len(found)]
        ends = cut in between
        assert problem is not None and problem.kind == ("unended" if ends else "cut")
        assert ends or f"after {len(found)} records" in problem.text
        lengths.append(len(found))
    assert lengths == sorted(lengths)
    assert set(lengths) == set(range(7))


def test_bit_flips_are_noticed(path: Path) -> None:
    records = [record(40.0 * n, bytes([n]) * 5) for n in range(3)]
    data = written(path, records)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found, problem = read(bytes(flipped))
        except CaptureError:
            assert bit // 8 < data.index(struct.pack("<I", recordings._CHUNK))
            continue
        in_minor_version = bit // 8 in (len(recordings.MAGIC) + 2, len(recordings.MAGIC) + 3)
        assert found == records[: len(found)]
        assert (problem is None) == in_minor_version


@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_garbage_never_crashes(tail: bytes) -> None:
    for data in (tail, recordings.MAGIC + tail, forged(tail), forged(chunk(tail))):
        try:
            found, problem = read(data, RecordingLimits(chunk=1000, record=200, total=2000))
        except CaptureError:
            continue
        assert problem is not None
        assert isinstance(found, list)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda data: b"PK\x03\x04" + data, "not a kvitals recording"),
        (lambda data: b"", "is empty"),
        (lambda data: data.replace(b"\r\n", b"\n", 1), "not a kvitals recording"),
        (lambda data: data[:8] + b"\x02\x00" + data[10:], "upgrade kvitals"),
        (lambda data: data[:12] + b"\xff\xff\xff\xff" + data[16:], "at most"),
        (lambda data: data[:30] + b"\x00" + data[31:], "its checksum does not match"),
        (lambda data: data[:15], "it is cut off"),
    ],
)
def test_refused_at_once(path: Path, make: Callable[[bytes], bytes], says: str) -> None:
    with pytest.raises(CaptureError, match=says):
        CaptureReader(io.BytesIO(make(written(path, [record(1.0)]))))


def test_a_header_of_nested_brackets_is_refused() -> None:
    body = b'{"kvitals":"","created":0,"meta":{"a":' + b"[" * 100_000
    data = recordings.MAGIC + struct.pack("<HHII", 1, 0, len(body), zlib.crc32(body)) + body
    with pytest.raises(CaptureError, match="damaged"):
        CaptureReader(io.BytesIO(data))


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="No such file"):
        CaptureReader.open(tmp_path / "none.kvcap")
    with pytest.raises(CaptureError, match="directory"):
        CaptureReader.open(tmp_path)


def test_a_file_is_never_overwritten(path: Path) -> None:
    written(path, [])
    with pytest.raises(CaptureError, match="exists already"):
        CaptureWriter(path, version="0")


@pytest.mark.parametrize("meta", [{"x": object()}, {"x": "y" * (2 << 20)}])
def test_unusable_meta_leaves_no_file(path: Path, meta: dict[str, object]) -> None:
    with pytest.raises(CaptureError, match="meta"):
        CaptureWriter(path, version="0", meta=meta)
    assert not path.exists()


def test_unusable_records_are_refused_when_written(path: Path) -> None:
    with CaptureWriter(path, version="0") as writer:
        with pytest.raises(CaptureError, match="an unusable time"):
            writer.write(record(float("nan")))
        with pytest.raises(CaptureError, match="at most"):
            writer.write(record(0.0, bytes(recordings.MAX_RECORD_BYTES)))
        writer.write(record(1.0))
    assert read(path.read_bytes()) == ([record(1.0)], None)


def test_a_full_disk_leaves_whole_chunks(path: Path) -> None:
    writer = CaptureWriter(path, version="0")
    writer.write(record(0.0))
    writer.flush()
    room = path.stat().st_size + 30
    writer.write(record(1.0, random.Random(1).randbytes(5000)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(CaptureError, match=r"cannot write .* stays readable"):
            writer.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.close()
    records, problem = read(path.read_bytes())
    assert records == [record(0.0)]
    assert problem is not None and problem.kind == "unended"
    writer.write(record(2.0))
    with pytest.raises(CaptureError, match="it was closed"):
        writer.flush()


def test_decompression_bombs_are_refused() -> None:
    claims_little = recordings._frame(recordings._CHUNK, recordings._compress(bytes(1 << 24)), 100)
    found, problem = read(forged(claims_little))
    assert found == [] and problem is not None and "size" in problem.text
    with pytest.raises(CaptureError, match=r"chunk .* do not trust"):
        read(forged(chunk(bytes(2000))), RecordingLimits(chunk=1000))
    packed = msgspec.msgpack.encode(record(1.0))
    whole = chunk(struct.pack("<I", len(packed)) + packed)
    with pytest.raises(CaptureError, match=r"all records .* do not trust"):
        read(forged(*[whole] * 10), RecordingLimits(total=200))


def test_a_content_size_that_lies_is_not_believed() -> None:
    liar = zstandard.ZstdCompressor(write_content_size=True).compress(bytes(1 << 24))
    found, problem = read(forged(recordings._frame(recordings._CHUNK, liar, 100)))
    assert found == [] and problem is not None and "size" in problem.text


def test_giant_records_are_refused() -> None:
    with pytest.raises(CaptureError, match=r"record .* do not trust"):
        read(forged(chunk(struct.pack("<I", 1 << 30))))


@pytest.mark.parametrize(
    "packed",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\x94\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00\xa0\xa0\xc4\x00",
        b"\x94\x01\xa1\xff\xa0\xc4\x00",
        b"\x91" * 180,
        b"",
    ],
    ids=["array of 4 G", "time is NaN", "no UTF-8", "nested", "empty"],
)
def test_bad_records_end_the_reading(packed: bytes) -> None:
    good = msgspec.msgpack.encode(record(1.0))
    raw = b"".join(struct.pack("<I", len(one)) + one for one in (good, packed))
    found, problem = read(forged(chunk(raw)))
    assert found == [record(1.0)]
    assert problem is not None and problem.kind == "corrupt"


def test_later_minor_versions_are_read() -> None:
    """A frame of an unknown kind is skipped, and so are fields behind the known ones of a record."""
    packed = msgspec.msgpack.encode([1.0, "scrape", "http://127.0.0.1:8000", b"page", "new"])
    unknown = recordings._frame(0x31574E4E, b"index", 5)
    end = recordings._frame(recordings._END, struct.pack("<I", 1), 4)
    data = forged(unknown, chunk(struct.pack("<I", len(packed)) + packed), end)
    assert read(data) == ([record(1.0)], None)


def test_a_missing_chunk_is_noticed(path: Path) -> None:
    data = written(path, [record(0.0), record(40.0)])
    mark = struct.pack("<I", recordings._CHUNK)
    second = data.index(mark, data.index(mark) + 1)
    _, problem = read(data[: data.index(mark)] + data[second:])
    assert problem is not None and problem.kind == "miscounted"
