"""Links between pages: what they name, and what a page that is opened by one shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from kvitals.diagnoser.text import plain
from kvitals.rules.finding import DocumentSource, Entity, Measure
from kvitals.ui.web import graphs, header, links, source_registry
from kvitals.ui.web.sources.base import ChartLine, Happening, PageWindow
from kvitals.ui.web.views import settings_forecast
from kvitals.ui.web.views.happenings import heat_rows, natural
from tests.unit.web import documents
from tests.unit.web.looking import AppTest, run, sound, words
from tests.unit.web.stub import Stub, stub_api

CASCADE, HEAVY = "demo:eviction_cascade", "demo:heavy_tenant"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    with stub_api(documents.unhealthy()) as stub:
        monkeypatch.setenv("KVITALS_API", stub.url)
        yield stub


def test_the_incident_states_who_since_impact_and_the_first_lever(api: Stub) -> None:
    said = words(run())
    for text in (
        "**Who** 127.0.0.1:8000/0",
        "**Since** 2025-12-31 14:02:40 UTC",
        "**Impact** 99 % of requests",
        "**Now** Keep keys and values in 8 bits: `--kv-cache-dtype fp8`",
        "- Who: 127",
        "- Evidence: http",
    ):
        assert text in said, text


def test_a_healthy_source_has_no_incident(api: Stub) -> None:
    api.say(documents.document())
    assert "**Who**" not in words(run())


def test_the_link_to_this_moment_names_the_window_of_the_document(api: Stub) -> None:
    window = documents.unhealthy().window
    codes = [str(code.value) for code in run().code]
    pinned = f"from={window.start:.3f}&to={window.end:.3f}"
    assert any(pinned in code for code in codes), codes


def test_a_link_picks_on_its_page_and_stays_in_the_address() -> None:
    app = run("rules", source=CASCADE, rule="KVC05")
    assert "## `KVC05`" in words(app)
    assert app.query_params["rule"] == "KVC05"
    app.selectbox(key="rule-all").set_value("KVC01")
    assert "## `KVC01`" in words(sound(app.run()))
    assert app.query_params["rule"] == "KVC01"


def test_a_link_picks_an_engine_a_tenant_and_a_request() -> None:
    engine = run("engine", source=CASCADE, engine="engine")
    assert "**:material/error: Unhealthy** Noisy tenant evicts" in words(engine)
    assert "`TEN02`" in words(engine) and "**KV usage p90**" in words(engine)
    tenant = run("tenants", source=CASCADE, tenant="t-7t3xmotuqe")
    assert "slowest requests of t-7t3xmotuqe" in words(tenant)
    name = "85c6b39cf10c48a797803c762ad05e92"
    request = run("requests", source=CASCADE, request=name)
    assert "tokens: prompt 488, cached 320, output 24" in words(request)
    assert request.query_params["request"] == name


def test_what_if_of_a_finding_is_of_its_engine(api: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two engines get the same lever with other settings; the link named the lever alone and opened the first one's."""
    asked = []
    monkeypatch.setattr(settings_forecast, "_ask", lambda place, settings, engine: asked.append((settings, engine)))
    first = documents.kv_full()
    other = Entity(kind="engine", labels={"engine": "engine-b"}, title="engine-b")
    levers = [replace(one, setting=replace(one.setting, to="64")) for one in first.levers if "seqs" in one.lever]
    api.say(documents.document(causes=[first, replace(first, id="second", entity=other, levers=levers)]))
    run("what-if", lever="lower-max-num-seqs", engine="engine-b")
    assert asked == [(["max-num-seqs=64"], "engine-b")]


def test_the_fleet_writes_figures_and_verdicts_as_the_terminal_does() -> None:
    """It wrote "4.975 s" for "4.98 s", "None", and a note's title beside the worst severity."""
    triage = source_registry.open_source(CASCADE).findings(None)
    [row] = triage.engines
    [shown] = run("fleet", source=CASCADE).dataframe[0].value.to_dict("records")
    assert shown["verdict"] == row.verdict
    known = {plain(name): one for name, one in row.figures.items() if one.text}
    assert known.keys() & shown.keys(), shown
    for title in known.keys() & shown.keys():
        assert shown[title] == known[title].value, title


def test_a_table_shows_the_text_of_a_figure_and_sorts_by_its_value() -> None:
    rows = [
        {"engine": "a", "TTFT p99": Measure("ttft_p99_seconds", 4.975, "seconds", "4.98 s")},
        {"engine": "b"},
        {"engine": "c", "TTFT p99": Measure("ttft_p99_seconds", None, "seconds", "above the last bucket")},
    ]

    def page(rows: list) -> None:  # type: ignore[type-arg]
        from kvitals.ui.web import tables

        tables.show(rows, "rows")

    [table] = AppTest.from_function(page, args=(rows,)).run().dataframe
    assert list(table.value["TTFT p99"])[::2] == [4.975, math.inf]
    written = table.proto.arrow_data.styler.display_values
    assert b"4.98 s" in written and b"above the last bucket" in written


def test_what_a_link_does_not_find_is_left_out() -> None:
    app = run("engine", source=CASCADE, engine="<script>")
    assert app.selectbox(key="engine").value == "engine"
    assert "TEN02" in words(app)
    assert "## " in words(run("rules", source=CASCADE, rule="XXX99"))


def test_a_lever_of_a_finding_fills_what_if_in_and_replays_it() -> None:
    app = run("what-if", source=CASCADE, lever="raise-kv-budget")
    assert app.text_input(key="what-if-capacities").value == "1x,240"
    said = words(app)
    assert "Hit rate when recorded" in said and "with the finding's setting" in said


def test_what_if_is_opened_with_a_lever_that_it_can_tell_about() -> None:
    """Without lookups the link named FP8, whose predicted size no replay shows: the page had no answer."""
    triage = source_registry.open_source(HEAVY).findings(None)
    assert triage.causes[0].levers[2].predicted, "of the size of the cache"
    lever = links.lever_to_try(triage.causes[0], triage)
    assert lever == "raise-kv-budget"
    app = run("what-if", source=HEAVY, lever=lever)
    assert "num-gpu-blocks-override" in words(app)


def test_the_fleet_counts_the_rows_of_the_document() -> None:
    """Engines were matched to findings by their name alone: of two clusters with one address, both were in trouble."""
    triage = source_registry.open_source(HEAVY).findings(None)
    (row,) = triage.engines
    assert (row.severity, bool(row.findings)) == ("page", True)
    shown = {tile.label: tile.value for tile in run("fleet", source=HEAVY).metric}
    assert shown["engines"] == shown["with severity page"] == shown["with any finding"] == "1"


def test_a_link_on_the_page_counts_once() -> None:
    """A browser repeats the address of a followed link in requests that were under way."""
    app = run("rules", source=CASCADE)
    app.query_params.update({"source": CASCADE, "rule": "KVC05", "go": "0"})
    assert "## `KVC05`" in words(sound(app.run()))
    assert "go" not in app.query_params
    app.selectbox(key="rule-all").set_value("KVC01")
    app.query_params.update({"rule": "KVC05", "go": "0"})
    assert "## `KVC01`" in words(sound(app.run()))


@pytest.mark.parametrize(
    ("page", "name", "value", "said"),
    [
        ("engine", "engine", "gone:1", "the engine gone:1, which does not exist here. The page shows"),
        ("rules", "rule", "ABC99", "the rule ABC99, which does not exist here. The page shows"),
        ("what-if", "lever", "no_lever", "the lever no_lever, which"),
        ("what-if", "engine", "gone:1", "the engine gone:1, which"),
        ("tenants", "tenant", "nobody", "the tenant nobody, which does not exist here. The page shows"),
        ("rules", "source", "demo:gone", "the source demo:gone, which"),
        ("rules", "from", "yesterday", "the time range yesterday to nothing, which"),
        ("nowhere", "rule", "", "the page nowhere, which"),
    ],
)
def test_a_link_to_what_does_not_exist_says_so(page: str, name: str, value: str, said: str) -> None:
    app = run(page, **({"source": CASCADE} | {name: value}))
    assert said in words(app)
    assert said in words(sound(app.run())), "also after the next run"


def test_a_link_to_what_exists_gives_no_hint() -> None:
    assert "The link names" not in words(run("rules", source=CASCADE, rule="KVC05"))


def test_the_window_of_an_onset_begins_before_it_and_ends_with_the_document() -> None:
    triage = documents.unhealthy()
    cause = triage.causes[0]
    end = triage.window.end
    window = links.onset(cause, triage, 0.0)
    assert cause.since is not None
    assert window.start < cause.since < window.end == end
    assert links.onset(replace(cause, since=end + 5), triage, 0.0).seconds == links.LEAST_SECONDS
    assert links.onset(replace(cause, since=None), triage, 0.0).start < triage.window.start
    assert links.onset(cause, triage, cause.since - 3.0).start == cause.since - 3.0, "no earlier than the source"


def type_range(app: Any, start: str) -> str:
    """Type another first moment and show the range; returns what was typed before."""
    field = next(t for t in app.text_input if t.label == "From")
    before = str(field.value)
    field.set_value(start)
    next(b for b in app.button if b.label == "Show").click()
    sound(app.run())
    return before


def test_a_typed_range_is_that_of_every_page() -> None:
    app = run("timeline", source=HEAVY)
    first = type_range(app, "14:05")
    assert "Write a time like" in words(app)
    assert app.session_state["look"] is None
    type_range(app, first)
    window = app.session_state["look"]
    assert isinstance(window, PageWindow) and window.seconds >= 5
    assert app.query_params["from"] == f"{window.start:.3f}"


def test_a_series_has_the_same_colour_on_every_chart() -> None:
    def drawn(order: tuple[str, ...]) -> dict[str, str]:
        found = [ChartLine({"engine": one}, [(0.0, 9.0 - i), (9.0, 9.0 - i)]) for i, one in enumerate(order)]
        spec = graphs.lines(found, "count", 0.0, 10.0)
        assert spec is not None
        scale = spec["encoding"]["color"]["scale"]
        return dict(zip(scale["domain"], scale["range"], strict=True))

    first, swapped = drawn(("one", "two", "three")), drawn(("three", "one", "two"))
    assert first == swapped
    assert len(set(first.values())) == 3
    eight = drawn(tuple("abcdefgh"))
    assert len(set(eight.values())) == 8


def test_the_worst_severity_of_an_engine_is_drawn_on_top() -> None:
    window = PageWindow(0.0, 100.0)
    told = [
        Happening("finding", "worst", 10.0, 20.0, "page", "a", "KVC01"),
        Happening("finding", "mild", 5.0, 50.0, "info", "a", "SCH03"),
        Happening("finding", "elsewhere", 5.0, 50.0, "page", "z", "KVC01"),
        Happening("event", "restarted", 30.0, entity="a"),
    ]
    rows = heat_rows(told, ["a", "b"], window)
    assert [row["color"] for row in rows] == ["event", "info", "page"]
    assert {row["lane"] for row in rows} == {"a"}


def test_engine_names_sort_by_their_numbers() -> None:
    names = ["engine-10", "engine-9", "10.0.0.2", "engine"]
    assert sorted(names, key=natural) == ["10.0.0.2", "engine", "engine-9", "engine-10"]


def test_charts_mark_the_onset_and_the_objective() -> None:
    found = [ChartLine({"engine": "a"}, [(0.0, 1.0), (9.0, 1.0)])]
    marks = [graphs.Mark(4.0, "onset of LAT01", "unhealthy")]
    spec = graphs.lines(found, "seconds", 0.0, 10.0, marks=marks, objective=2.0)
    assert spec is not None
    assert [layer["data"]["values"][0].get("label") for layer in spec["layer"][1:]] == ["onset of LAT01", None]
    assert spec["layer"][2]["data"]["values"] == [{"value": 2.0}]
    flat = graphs.lines(found, "seconds", 0.0, 10.0, objective=60.0)
    assert flat is not None and "layer" not in flat, "an objective far above would press the line flat"


@pytest.mark.parametrize("page", ["timeline", "fleet", "engine"])
def test_an_agent_that_stopped_is_no_all_clear(api: Stub, page: str) -> None:
    """The document of a stopped agent is older than what the page draws: nothing happened in that time."""
    old = replace(documents.unhealthy(), source=DocumentSource("agent", "this node"))
    api.say(old)
    said = words(run(page))
    assert "The agent stopped scraping" in said
    assert old.verdict in said


def test_a_range_of_two_days_names_the_days() -> None:
    long = PageWindow(documents.END, documents.END + 2 * 86400)
    assert header.clock(long.start, long) != header.clock(long.end, long)
    assert header.clock(long.start, PageWindow(long.start, long.start + 60)) == "14:03:20"
