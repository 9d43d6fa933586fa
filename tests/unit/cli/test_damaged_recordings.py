"""Recordings with damage: each answer states what could not be read, and none is healthy because of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest

from kvitals.agent.records import FactsRecord, encode
from kvitals.app.demo import FOLDER, HEAVY_TENANT
from kvitals.series import recordings
from kvitals.series.recordings import CaptureReader, Record
from kvitals.ui.cli.output import FORMATS
from tests.support.command import Answer, answer
from tests.support.loops import for_each
from tests.support.recordings import CAPTURES

SEED = 20261125
SWEPT = (
    FOLDER / "caching_off.kvcap",
    CAPTURES / "incidents" / "batch_fills_kv-1.kvcap",
    CAPTURES / "drawn" / "drawn-1000.kvcap",
)
HEALTHY = FOLDER / "healthy.kvcap"
CUT = "is cut off inside a chunk"


@cache
def frames(path: Path) -> tuple[bytes, ...]:
    """The header of a recording, and each of its frames."""
    data = path.read_bytes()
    begin = recordings._PREAMBLE.unpack_from(data, len(recordings.MAGIC))[2]
    at = len(recordings.MAGIC) + recordings._PREAMBLE.size + begin
    parts = [data[:at]]
    while at < len(data):
        end = at + recordings._FRAME.size + recordings._FRAME.unpack_from(data, at)[1]
        parts.append(data[at:end])
        at = end
    return tuple(parts)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def rewritten(path: Path, change: Callable[[Record], Record | None], *more: Record) -> bytes:
    """A recording with valid checksums whose records are changed or left out (None), with more at its end."""
    with CaptureReader.open(path) as reader:
        records = [*(now for record in reader if (now := change(record))), *more]
    chunks = []
    for begin in range(0, len(records), 31):
        packed = [msgspec.msgpack.encode(one) for one in records[begin : begin + 31]]
        raw = b"".join(recordings._U32.pack(len(one)) + one for one in packed)
        chunks.append(recordings._frame(recordings._CHUNK, recordings._compress(raw), len(raw)))
    end = recordings._frame(recordings._END, recordings._U32.pack(len(records)), 4)
    return b"".join([frames(path)[0], *chunks, end])


def triage(folder: Path, data: bytes, *more: str) -> Answer:
    file = folder / "x.kvcap"
    file.write_bytes(data)
    return answer(["triage", str(file), *more])


def drawn(seed: int, each: int) -> Iterator[tuple[Path, str, bytes]]:
    """Flips and cuts of the swept recordings, so many of each."""
    dice = random.Random(seed)
    for path in SWEPT:
        data = path.read_bytes()
        for _ in range(each):
            bit, size = dice.randrange(len(data) * 8), dice.randrange(len(data))
            yield path, f"flip of bit {bit}", flipped(data, bit)
            yield path, f"cut at {size}", data[:size]


@for_each("path, what, data", lambda: drawn(SEED, 3))
def test_damage_anywhere_is_in_the_document(path: Path, what: str, data: bytes, tmp_path: Path) -> None:
    assert_stated(path, what, data, tmp_path)


@pytest.mark.system
@for_each("path, what, data", lambda: drawn(SEED + 1, 40))
def test_much_damage_is_in_the_document(path: Path, what: str, data: bytes, tmp_path: Path) -> None:
    assert_stated(path, what, data, tmp_path)


def assert_stated(path: Path, what: str, data: bytes, tmp_path: Path) -> None:
    """No traceback; what is damaged is stated, and what is before it is judged."""
    told = triage(tmp_path, data, "--json")
    assert "Traceback" not in told.out + told.err
    if told.code == 2:
        assert told.out == "" and told.err.startswith("kvitals: ") and len(told.err.splitlines()) == 1
        assert len(data) < len(b"".join(frames(path)[:2])) or "flip" in what
        return
    document = json.loads(told.out)
    assert told.err == ""
    assert document["coverage"]["rules"] > 20 and document["coverage"]["engines"], "the part before it is judged"
    if data[8:12] == path.read_bytes()[8:12]:  # a minor version of its own is no damage
        assert document["coverage"]["warnings"], what
        whole = any(data == b"".join(frames(path)[:n]) for n in range(len(frames(path))))
        assert told.code in (1, 3) or whole, what


@cache
def damaged() -> dict[str, tuple[bytes, int, str]]:
    """Name -> a healthy recording with a damage, the exit code, and what its warning contains."""
    head, *chunks, end = frames(HEALTHY)
    whole = b"".join([head, *chunks, end])
    assert len(chunks) > 3

    def broken(record: Record) -> Record:
        return msgspec.structs.replace(record, payload=b"\xc1") if record.sense == "scrape" else record

    with CaptureReader.open(HEALTHY) as reader:
        last = list(reader)[-1].t
    facts = encode(FactsRecord(t=last, target="http://127.0.0.1:1/metrics", source="version endpoint"))
    silent = rewritten(
        HEALTHY, lambda record: None if record.sense == "scrape" and record.t > last - 30.0 else record, facts
    )
    newer = Record(last, "fan", "", msgspec.msgpack.encode({"type": "fan", "t": last}))
    with_newer = rewritten(HEALTHY, lambda record: record, newer)
    return {
        "whole": (whole, 0, ""),
        "no end mark": (whole[: -len(end)], 0, "ends without its end mark"),
        "cut inside the last chunk": (whole[: -len(end) - 9], 3, CUT),
        "cut inside the end mark": (whole[:-2], 3, CUT),
        "a flipped bit": (flipped(whole, 8 * (len(whole) - len(end) - 100)), 3, "does not match its checksum"),
        "no second chunk": (b"".join([head, chunks[0], *chunks[2:], end]), 3, "its end mark states"),
        "the last chunk twice": (b"".join([head, *chunks, chunks[-1], end]), 3, "its end mark states"),
        "chunks in another order": (b"".join([head, chunks[1], chunks[0], *chunks[2:], end]), 3, "go back by"),
        "data after the end": (whole + b"\0" * 50, 3, "continues after its end mark"),
        "pages that cannot be decoded": (rewritten(HEALTHY, broken), 3, "cannot be decoded"),
        "records of a newer version": (with_newer, 0, "a newer kvitals wrote them"),
        "no scrapes at its end": (silent, 3, "after +"),
        "a clock set back": (rewritten(HEALTHY, set_back()), 3, "go back by"),
    }


def set_back() -> Callable[[Record], Record]:
    """A clock that is set back by 200 s in the middle."""
    with CaptureReader.open(HEALTHY) as reader:
        times = [record.t for record in reader]
    middle = (times[0] + times[-1]) / 2

    def change(record: Record) -> Record:
        if record.t < middle:
            return record
        values = msgspec.msgpack.decode(record.payload)
        moved = record.t - 200.0
        return msgspec.structs.replace(record, t=moved, payload=msgspec.msgpack.encode({**values, "t": moved}))

    return change


@for_each("name", lambda: [*damaged()])
def test_a_healthy_recording_with_damage(name: str, tmp_path: Path) -> None:
    data, code, says = damaged()[name]
    told = triage(tmp_path, data, "--json")
    document = json.loads(told.out)
    assert (told.code, told.err) == (code, "")
    assert any(says in one for one in document["coverage"]["warnings"]) == bool(says)
    assert document["healthy"] is (True if code == 0 else None)
    assert [row["healthy"] for row in document["engines"]] == [document["healthy"]] * len(document["engines"])


def test_a_breach_stays_one_beside_the_warning(tmp_path: Path) -> None:
    told = triage(tmp_path, HEAVY_TENANT.read_bytes() + b"\0", "--json")
    document = json.loads(told.out)
    assert (told.code, document["healthy"]) == (1, False)
    assert document["causes"] and len(document["coverage"]["warnings"]) == 1


def test_the_time_before_the_damage_is_healthy(tmp_path: Path) -> None:
    told = triage(tmp_path, damaged()["a flipped bit"][0], "--at=+60s", "--json")
    assert told.code == 0
    assert "is damaged" in json.loads(told.out)["coverage"]["warnings"][0]


@for_each("output", FORMATS)
def test_each_format_has_the_warning(output: str, tmp_path: Path) -> None:
    told = triage(tmp_path, damaged()["cut inside the last chunk"][0], "-o", output)
    assert told.code == 3
    assert CUT in " ".join(told.out.split())


COMMANDS = (
    ("triage",), ("triage", "-v"), ("check",), ("record", "--replay"), ("top", "--once"), ("trace", "--newest", "1"),
    ("cache",), ("knee",), ("patch",), ("whatif", "--set", "max-num-seqs=16"), ("trace", "--flame"),
)  # fmt: skip


@for_each("command", COMMANDS)
def test_each_command_states_the_damage(command: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "x.kvcap"
    file.write_bytes(HEAVY_TENANT.read_bytes() + b"\0")
    told = answer([command[0], str(file), *command[1:]])
    assert "Traceback" not in told.err
    assert "continues after its end mark" in " ".join((told.out + told.err).split())


def test_a_comparison_states_it(tmp_path: Path) -> None:
    file = tmp_path / "x.kvcap"
    file.write_bytes(HEAVY_TENANT.read_bytes() + b"\0")
    assert "continues after its end mark" in " ".join(answer(["compare", str(file), str(HEALTHY)]).out.split())


def test_a_check_of_a_part_finds_nothing_in_order(tmp_path: Path) -> None:
    file = tmp_path / "x.kvcap"
    file.write_bytes(damaged()["cut inside the last chunk"][0])
    told = answer(["check", str(file), "--json"])
    document = json.loads(told.out)
    assert (told.code, document["ok"]) == (3, None)
    assert CUT in document["warnings"][0]


def test_a_replay_of_a_part_is_unknown_at_its_end(tmp_path: Path) -> None:
    file = tmp_path / "x.kvcap"
    file.write_bytes(damaged()["cut inside the last chunk"][0])
    told = answer(["record", "--replay", str(file)])
    assert told.code == 3
    assert "No trouble found" in told.out and "Unknown: the data that was read" in told.out


def test_an_incident_with_a_loss_is_not_played(tmp_path: Path) -> None:
    file = tmp_path / "x.kvcap"
    file.write_bytes(HEAVY_TENANT.read_bytes() + b"\0")
    told = answer(["gate", "extract", str(file), "--out", str(tmp_path / "load.jsonl")])
    assert told.code == 2
    assert "continues after its end mark" in told.err and "Copy the file again" in told.err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda record: msgspec.structs.replace(record, t=7.0), "no two scrapes in the order of time"),
        (lambda record: msgspec.structs.replace(record, t=-record.t), "check the clock of the node"),
    ],
    ids=["one time", "backwards"],
)
def test_times_that_make_no_window(change: Callable[[Record], Record], says: str, tmp_path: Path) -> None:
    told = triage(tmp_path, rewritten(HEALTHY, change))
    assert (told.code, told.out) == (2, "")
    assert says in told.err and "requested time" not in told.err
