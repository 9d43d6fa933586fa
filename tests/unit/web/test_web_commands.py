"""Pages whose numbers are the command line's: the knee, the size of a fleet, the review."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvitals.app.engine_twin import advised_settings
from kvitals.app.page_settings import PageSettings
from kvitals.diagnoser.review.result import Review
from kvitals.rules.finding import Triage
from kvitals.ui.cli.main import main
from kvitals.ui.review.charts import COLOURS
from kvitals.ui.review.markdown import markdown
from kvitals.ui.review.page import page
from kvitals.ui.review.sections import Chart, sections
from kvitals.ui.web import commands, data, graphs, source_registry
from kvitals.ui.web.commands import CommandOutput
from kvitals.ui.web.failure import Failure, NotYetError, UnansweredError
from kvitals.ui.web.sources.base import PageWindow
from kvitals.ui.web.views.efficiency import DRAWN, gpu_time_rectangles
from tests.unit.review.test_review_whole import HOSTILE, asked, knowledge, made  # noqa: F401 (fixtures)
from tests.unit.web.looking import run, sound, words

SLOTS = "demo:few_slots"


@dataclass
class Terminal:
    """The command line in this process: the documents that it printed."""

    documents: list[Any] = field(default_factory=list)

    def run(self, arguments: Sequence[str]) -> CommandOutput:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main(arguments)
        if ended.value.code and not (ended.value.code == commands.UNKNOWN and out.getvalue()):
            raise UnansweredError(Failure("refused", err.getvalue(), ""))
        self.documents.append(json.loads(out.getvalue()))
        return CommandOutput(out.getvalue().encode())


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    found = Terminal()
    monkeypatch.setattr(commands, "run", found.run)
    return found


def press(app: Any, label: str) -> Any:
    next(b for b in app.button if b.label == label).click()
    return sound(app.run())


def _labelled(widgets: Any, label: str) -> Any:
    return next(one for one in widgets if one.label == label)


def predicted(app: Any, flag: str, value: str) -> Any:
    _labelled(app.selectbox, "Setting").set_value(flag)
    _labelled(app.text_input, "Value").set_value(value)
    return press(app, "Predict")


def printed(setting: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a terminal shows of the same settings, each row with single spaces."""
    monkeypatch.setenv("COLUMNS", "200")
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit):
        main(["whatif", str(source_registry.demos()[SLOTS]), f"--set={setting}"])
    return " ".join(out.getvalue().split())


def test_a_forecast_has_the_figures_of_the_terminal(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    app = run("what-if", source=SLOTS)
    assert "No result yet" not in words(app), "the recording has no lookups"
    app = predicted(app, "max-num-seqs", "8")
    [rows] = [table.value for table in app.dataframe if "90% range" in table.value]
    shown = printed("max-num-seqs=8", monkeypatch)
    assert len(rows) == 12
    for row in rows.itertuples(index=False):
        assert " ".join(" ".join(map(str, row)).split()) in shown
    tiles = {tile.label: tile.value for tile in app.metric}
    for title in ("TTFT p50", "ITL p50", "output tokens", "hit rate", "preemptions"):
        row = rows[rows["quantity"] == title].iloc[0]
        assert tiles[title] == f"{row['measured']} → {row['predicted']}"


def test_a_forecast_that_is_refused_states_the_reason(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    app = predicted(run("what-if", source=SLOTS), "num-gpu-blocks-override", "100")
    [document] = terminal.documents[0]
    assert document["no_prediction"] in words(app)
    assert document["no_prediction"] in printed("num-gpu-blocks-override=100", monkeypatch)
    assert not app.metric, "no figure stands where nothing is predicted"


@pytest.mark.parametrize("value", ["", "0", "-1", "many"])
def test_a_setting_that_can_not_be_is_refused(terminal: Terminal, value: str) -> None:
    said = words(predicted(run("what-if", source=SLOTS), "max-num-seqs", value))
    assert ("write --set max-num-seqs=VALUE, with a whole number above 0" in said) == bool(value)
    assert value or "No value is given" in said


def test_what_if_of_a_finding_fills_in_the_setting_and_predicts(terminal: Terminal) -> None:
    """Few slots: the lever sets --max-num-seqs, which no replay of lookups can judge."""
    triage = source_registry.open_source(SLOTS).findings(None)
    [advised, *_] = advised_settings(triage)
    app = run("what-if", source=SLOTS, lever=advised.lever)
    flag, _, value = advised.text.partition("=")
    assert (_labelled(app.selectbox, "Setting").value, _labelled(app.text_input, "Value").value) == (flag, value)
    assert terminal.documents, "it was run"
    assert f"--{flag}" in words(app)


def test_the_knee_is_that_of_the_terminal(terminal: Terminal) -> None:
    app = run("fleet", source=SLOTS)
    said = words(press(app, "Find the knee"))
    point = terminal.documents[0][0]
    limit = next(one for one in point["limits"] if one["objective"] == "ttft_p99")
    assert f"{limit['concurrency']['value']:.1f}" in said
    assert f"Usable within the time to first token: {limit['requests']:,.4g} requests/s" in said
    assert "slots 50%" in said
    for missing in point["missing"]:
        assert f"not known: {missing}" in said
    assert "unknown" in [one.value for one in app.metric]


def test_a_fleet_is_sized_as_the_terminal_sizes_it(terminal: Terminal) -> None:
    app = run("size", source=SLOTS)
    app.text_input(key="size-peak").set_value("40")
    app = press(app, "Size it")
    shown = next(c.value for c in app.code if c.value.startswith("kvitals size"))
    assert "--peak=40" in shown and "'--gpu=H100 SXM5 80GB'" in shown
    plan = terminal.documents[0]
    assert plan["workload"]["peak"] == 40.0
    assert [one.value for one in app.metric][:2] == [f"{plan['gpus']:,}", f"{plan['instances']:,}"]
    assert [e.label for e in app.expander if "1\\. Workload" in e.label]
    assert "**A bound:**" in words(app)


@pytest.mark.parametrize("peak", ["0", "many", "--help", "-5", "$(id)"])
def test_what_can_not_be_sized_is_said(terminal: Terminal, peak: str) -> None:
    app = run("size", source=SLOTS)
    app.text_input(key="size-peak").set_value(peak)
    assert f"--peak {peak}: write a number above 0" in words(press(app, "Size it"))


def test_a_review_is_shown_whole(made: Review, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    said_to: list[tuple[str, ...]] = []

    def answer(arguments: tuple[str, ...]) -> CommandOutput:
        said_to.append(arguments)
        files = {"review.html": page(made).encode(), "review.md": markdown(made).encode()}
        return CommandOutput(b"", files | {"review.json": msgspec.json.encode(made)})

    monkeypatch.setattr(commands, "run", answer)
    monkeypatch.setenv("KVITALS_WEB", PageSettings(api="http://127.0.0.1:1").encode())
    app = run("efficiency")
    app.text_input(key="review-price").set_value("2.5")
    app = press(app, "Review")
    assert said_to == [("review", "http://127.0.0.1:1", "--since=7d", "--price=2.5", "--out={out}")]
    said = words(app)
    for sentence in made.story:
        assert sentence in said
    for section in sections(made):
        assert section.title in said
    shown = {text for table in app.dataframe for column in table.value.values.tolist() for text in column}
    assert any(HOSTILE in str(text) for text in shown), "a tenant's name is shown as it is"


def test_every_chart_of_a_review_is_drawn(made: Review) -> None:  # noqa: F811
    for section in sections(made):
        charts = [block for block in section.blocks if isinstance(block, Chart)]
        drawings = DRAWN.get(section.title, ())
        assert len(charts) <= len(drawings), section.title
        for draw in drawings[: len(charts)]:
            assert draw(made).to_dict()["data"]["values"], section.title


def test_the_parts_of_the_gpu_time_stack_to_each_steps_total(made: Review) -> None:  # noqa: F811
    """They were drawn as dashes that float at the height of each part."""
    rows, parts = gpu_time_rectangles(made), made.courses.parts
    for at, end in enumerate(made.courses.ends):
        pile = [row for row in rows if row["to"] == graphs.milliseconds(end)]
        edges = [0.0] + [row["high"] for row in pile]
        assert [row["low"] for row in pile] == edges[:-1]
        assert edges[-1] == pytest.approx(sum(hours[at] for name, hours in parts.items() if name in COLOURS))


def test_a_recording_is_no_review() -> None:
    assert "A recording is too short for a review" in words(run("efficiency", source=SLOTS))


def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(UnansweredError) as refused:
        commands.run(("knee", str(tmp_path / "none.kvcap")))
    assert "no file or directory" in refused.value.failure.detail


def test_a_command_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "SECONDS", 0.001)
    with pytest.raises(UnansweredError) as refused:
        commands.run(("version",))
    assert "longer than" in refused.value.failure.detail


def test_sources_as_the_command_line_names_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = PageSettings(api="http://a:1", prometheus="http://p:2", history=str(tmp_path), slo={"ttft_p99": 1.5})
    monkeypatch.setenv("KVITALS_WEB", told.encode())
    assert source_registry.arguments(source_registry.AGENT) == ["http://a:1", "--slo=ttft=1.5s"], (
        "no history is there yet"
    )
    (tmp_path / "history.db").touch()
    assert source_registry.arguments(source_registry.AGENT)[0] == str(tmp_path / "history.db")
    assert source_registry.arguments(source_registry.PROMETHEUS)[0] == "--prometheus=http://p:2"
    assert source_registry.arguments("agent:http://other:3")[0] == "http://other:3"
    monkeypatch.setenv("KVITALS_WEB", PageSettings(may_type=False).encode())
    for place in ("agent:http://other:3", "prometheus:http://other:3", "file:0123"):
        with pytest.raises(UnansweredError):
            source_registry.arguments(place)


def test_a_link_keeps_its_lever_while_the_source_is_judged(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is drawn with the progress first, and once more when there is a verdict."""
    judged = data.triage
    waits = [NotYetError(share=0.5)]

    def triage(place: str, look: PageWindow | None) -> Triage:
        if waits:
            raise waits.pop()
        return judged(place, look)

    monkeypatch.setattr(data, "triage", triage)
    [advised, *_] = advised_settings(source_registry.open_source(SLOTS).findings(None))
    app = run("what-if", source=SLOTS, lever=advised.lever)
    assert not waits
    assert terminal.documents, "it was run once there was a verdict"
    assert _labelled(app.text_input, "Value").value == advised.text.partition("=")[2]
