"""`-o FORMAT`: every command that prints a document prints it in each format, and no name from outside is markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import yaml
from markdown_it import MarkdownIt
from rich.console import Console

from kvitals.app.demo import HEAVY_TENANT
from kvitals.app.sources import prometheus_fleet
from kvitals.diagnoser.sources.presence import Presence
from kvitals.rules.finding import Entity
from kvitals.series.types import Labels
from kvitals.ui.cli.main import main
from kvitals.ui.cli.output import FORMATS, MAX_SLACK, Block, Item, PrintedDocument, emit
from kvitals.ui.cli.triage import _printed
from tests.fuzz.texts import HOSTILE
from tests.support.loops import for_each
from tests.support.recordings import judge, setup

ROOT = Path(__file__).parents[3]
HEAVY = str(HEAVY_TENANT)
THRASH = str(ROOT / "tests/captures/ledger/thrash.kvcap")
COMMANDS = {
    "triage": ("triage", HEAVY),
    "check": ("check", HEAVY),
    "compare": ("compare", f"{HEAVY}@+30s", HEAVY),
    "cache": ("cache", THRASH),
    "knee": ("knee", HEAVY),
    "audit": ("knee", "--audit", HEAVY),
    "whatif": ("whatif", "--capture", THRASH),
    "curve": ("whatif", "--curve", "--capture", THRASH),
    "size": (
        *("size", "--model", "Llama 3.3 70B", "--weights", "fp8", "--peak", "12"),
        *("--rate", "6", "--prompt", "1000,3000,8000", "--answer", "200,400"),
    ),
    "upgrade": ("upgrade", "vllm", "0.28", "0.32"),
    "trace": ("trace", "--slowest", "2", THRASH),
    "flame": ("trace", "--flame", str(ROOT / "tests/captures/requests/stages.kvcap")),
    "explain": ("explain", "KVC01"),
}
OTHERS_JSON = {"trace", "flame"}
"""`trace --json` is a record a line, and `--flame` has no such alias."""
pytestmark = pytest.mark.usefixtures("shared_verdicts")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert isinstance(stop.value.code, int)
    return stop.value.code, capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_its_document_in_every_format(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = COMMANDS[name]
    printed = {form: run(capsys, *words, "-o", form) for form in FORMATS}
    assert {code for code, _ in printed.values()} <= {0, 1}
    assert len({code for code, _ in printed.values()}) == 1
    out = {form: text for form, (_, text) in printed.items()}
    if name not in OTHERS_JSON:
        assert run(capsys, *words, "--json")[1] == out["json"]
    assert json.loads(out["json"]) == yaml.safe_load(out["yaml"])
    assert out["md"].startswith("# KVC01" if name == "explain" else "**") and "<p>" in MarkdownIt().render(out["md"])
    assert out["slack"].startswith("*") and len(out["slack"]) <= MAX_SLACK + 1
    assert _balanced(out["html"])
    assert all(text.strip() for text in out.values())


def test_an_incident_is_pasted_whole(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("md", "slack", "html"):
        _, out = run(capsys, "triage", HEAVY, "-o", form)
        for part in ("✗ KV cache full: requests wait for blocks.", "KVC01", "Proof", "Now (no restart)", "LAT01"):
            assert part in out, (form, part)
        assert re.search(r"(?:`|<code>)--kv-cache-dtype fp8 --num-gpu-blocks-override 258(?:`|</code>)", out), form


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert not attrs
        self.seen.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def _balanced(text: str) -> bool:
    tags = _Tags()
    tags.feed(text)
    tags.close()
    return not tags.open and tags.seen <= {"p", "strong", "ul", "li", "code", "pre", "br", "small"}


def _document(name: str, *, whole: bool) -> PrintedDocument:
    def show(console: Console) -> None:
        console.print(name)

    blocks = [Block(name), Block(name, (Item(name, name, name),))]
    return PrintedDocument(name, show, lambda: json.dumps({"name": name}), None if whole else lambda: blocks)


@for_each("name", HOSTILE, ids=repr)
def test_no_name_is_markup(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "\ud800" in name:
        return  # no program can print it; letters.py replaces it
    for whole in (True, False):
        emit(_document(name, whole=whole), "md")
        tokens = MarkdownIt("commonmark", {"html": True}).parse(capsys.readouterr().out)
        flat = [child for token in tokens for child in [token, *(token.children or ())]]
        assert not {"link_open", "image", "html_inline", "html_block", "em_open"} & {token.type for token in flat}
        assert {token.type for token in flat if token.type.startswith("heading")} == set()
        emit(_document(name, whole=whole), "slack")
        sent = capsys.readouterr().out
        assert "<" not in sent and ">" not in sent
        assert sent.count("```") in (0, 2)
        emit(_document(name, whole=whole), "html")
        assert _balanced(capsys.readouterr().out)


@for_each("name", ["a\u202egnp.exe", "a\x9b31m", "\u200bhid\u00adden", "\u2028", "\U000e0041tag", "模型"], ids=ascii)
def test_documents_for_programs_have_each_name_and_no_unseen_character(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = PrintedDocument(name, lambda _: None, lambda: msgspec.json.encode({name: [name]}).decode())
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        emit(document, form)
        printed = capsys.readouterr().out
        assert read(printed) == {name: [name]}
        assert all(letter == "\n" or letter.isprintable() for letter in printed)


def test_hostile_names_of_a_triage_are_text_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    document = judge(HEAVY_TENANT, setup()).document
    hostile = "<!channel> [x](https://evil.example) <script>"
    findings = [
        msgspec.structs.replace(one, entity=Entity("engine", {"engine": hostile}, hostile)) for one in document.causes
    ]
    changed = msgspec.structs.replace(document, causes=findings)
    for form in ("md", "slack", "html"):
        emit(_printed(changed, 0), form)
        out = capsys.readouterr().out
        assert "<!channel>" not in out and "<script>" not in out
        assert form == "html" or "](https://" not in out  # in HTML these letters are no link


def test_what_a_prometheus_has_is_a_document_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Labels({"pool": "<chat>"})
    there = Presence({pool: 2}, {"kvitals_ttft_seconds": {pool: 1}}, {"kvitals_gpu_power_watts": ["GPU01"]})
    survey = SimpleNamespace(left_out="", agents=True, interval=15.0)
    monkeypatch.setattr(prometheus_fleet, "look_at_server", lambda *_: (survey, there))
    words = ("check", "--prometheus", "http://127.0.0.1:1")
    code, out = run(capsys, *words, "-o", "json")
    assert code == 1
    assert json.loads(out) == {
        "prometheus": "http://127.0.0.1:1",
        "agents": True,
        "interval": 15.0,
        "left_out": "",
        "pools": [{"labels": {"pool": "<chat>"}, "engines": 2, "families": {"kvitals_ttft_seconds": 1}}],
        "absent": {"kvitals_gpu_power_watts": ["GPU01"]},
    }
    assert "<chat>" in run(capsys, *words)[1]
    assert "&lt;chat&gt;" in run(capsys, *words, "-o", "html")[1]
