"""No name from outside begins a line of its own in what a command prints for people."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rich.table import Table
from rich.text import Text

from kvitals.agent.records import ScrapeRecord, decode, encode
from kvitals.app.escaping.terminal import Lines, SafeConsole
from kvitals.series.recordings import CaptureReader, CaptureWriter
from kvitals.series.recordings import Record as Recorded
from kvitals.ui.cli.main import main
from tests.goldens.terminal import ROOT
from tests.support.loops import for_each

PLANTED = "PLANTED LINE"
NAME = f"evil\n{PLANTED}\r{PLANTED}\x0b{PLANTED}\x85{PLANTED}\u2028{PLANTED}\x1b[31m"
LABELS = re.compile(rb'((?:model_name|model|served_model_name|finished_reason|lora_name)=")[^"]*"')
BEGINS = re.compile(rf"^\W*{PLANTED}", re.MULTILINE)


def _renamed(record: Recorded) -> Recorded:
    made = decode(record)
    if isinstance(made, ScrapeRecord) and isinstance(made.body, bytes):
        value = NAME.replace("\n", "\\n").encode()
        return encode(msgspec.structs.replace(made, body=LABELS.sub(lambda found: found[1] + value + b'"', made.body)))
    return record


def _hostile(source: Path, made: Path) -> Path:
    """The recording with hostile names of models."""
    with (
        CaptureReader.open(source) as reader,
        CaptureWriter(made, version=reader.header.kvitals, meta=reader.header.meta) as writer,
    ):
        for record in reader:
            writer.write(_renamed(record))
    return made


COMMANDS = {
    "check": ("check", "-v"),
    "triage": ("triage",),
    "triage -v": ("triage", "-v"),
    "triage -vv": ("triage", "-vv"),
    "triage -o wide": ("triage", "-o", "wide"),
    "triage -o md": ("triage", "-o", "md"),
    "triage -o slack": ("triage", "-o", "slack"),
    "triage -o html": ("triage", "-o", "html"),
    "top": ("top", "--once"),
    "knee": ("knee",),
    "audit": ("knee", "--audit"),
    "cache": ("cache",),
    "trace": ("trace", "--slowest", "3"),
    "flame": ("trace", "--flame"),
    "replay": ("record", "--replay"),
    "compare": ("compare",),
    "curve": ("whatif", "--curve", "--capture"),
    "whatif": ("whatif", "--capture"),
    "patch": ("patch",),
}
SOURCES = {
    "heavy_tenant": ROOT / "app/demo/heavy_tenant.kvcap",
    "few_slots": ROOT / "app/demo/few_slots.kvcap",
    "stages": ROOT / "tests/captures/requests/stages.kvcap",
}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("hostile")
    return {name: _hostile(source, folder / f"{name}.kvcap") for name, source in SOURCES.items()}


@for_each("source, command", [(source, command) for source in SOURCES for command in COMMANDS])
def test_no_name_begins_a_line(
    source: str, command: str, recordings: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(recordings[source])
    words = COMMANDS[command]
    with pytest.raises(SystemExit):
        main((*words, place, place) if command == "compare" else (*words, place))
    for text in capsys.readouterr():
        assert "\x1b" not in text
        assert not BEGINS.search(text), text[:2000]


def test_the_name_is_in_the_text(recordings: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Else the test above would pass whatever is printed."""
    with pytest.raises(SystemExit):
        main((*COMMANDS["check"], str(recordings["heavy_tenant"])))
    assert f"model evil {PLANTED}" in capsys.readouterr().out


def _shown() -> Iterator[object]:
    table = Table(title=NAME)
    table.add_column(NAME)
    table.add_row(Text(NAME, style="red"))
    yield from (NAME, Text(NAME, style="bold"), Text.assemble((NAME, "red"), " b"), table)


def test_only_lines_of_ours_are_broken() -> None:
    for each in _shown():
        file = io.StringIO()
        SafeConsole(file=file, width=300, markup=False, highlight=False).print(each)
        assert "evil" in file.getvalue()
        assert not BEGINS.search(file.getvalue())
    file = io.StringIO()
    SafeConsole(file=file, width=300).print(Lines(Text("a\nb")))
    assert file.getvalue() == "a\nb\n"
