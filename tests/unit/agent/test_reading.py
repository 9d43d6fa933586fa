"""What one series can mean: several families, a counter not on the page yet, a label that lied in old versions."""

import msgspec
import pytest
import yaml

from kvitals.agent.collectors.page_parser import PageParser
from kvitals.agent.collectors.status import Identity
from kvitals.agent.families import SERVER_INFO, Translator
from kvitals.rules.engine_map import Endpoint, EngineMap
from kvitals.series.types import is_stale
from kvitals.series.window import Window
from tests.unit.agent.page_stage import matchers

MAP = """
system: toy
title: Toy
oldest: "1.0"
newest: "1.4"
recognise: {prefixes: ["toy:"]}
rank_labels: [rank]
replica_labels: [copy]
model_label: model
role_label: part
role_versions: ">=1.2"
roles: {whole: unified, p: prefill}
metrics:
  - {raw: running, family: kvitals_running, where: {priority: ""}}
  - {raw: tokens_total, family: kvitals_asked_total}
  - {raw: tokens_total, where: {mode: hit}, family: kvitals_hit_total, also: true}
  - {raw: tokens_total, where: {mode: hit}, family: kvitals_kilo_hits_total, scale: 0.001, also: true}
  - {raw: old_total, where: {mode: a}, family: kvitals_old_total}
  - {raw: old_total, where: {mode: b}, family: kvitals_old_total}
  - {raw: evicted_total, family: kvitals_evicted_total, zero_beside: running, versions: ">=1.1"}
  - {raw: load_ratio, family: kvitals_load_ratio}
ignored: {noise_seconds: a histogram of no use}
"""


class Watched:
    """A target that is fed with pages a second apart."""

    def __init__(self, version: str = "") -> None:
        self.window = Window(1000.0, 1000)
        self.translator = Translator(
            self.window, "t", Identity("h:1"), [msgspec.convert(yaml.safe_load(MAP), EngineMap)]
        )
        self.parser, self.t = PageParser(), 0.0
        if version:
            self.translator.learn(SERVER_INFO, {}, {"version": version})

    def feed(self, *lines: str) -> None:
        self.t += 1.0
        page = self.parser.parse(("\n".join(lines) + "\n").encode())
        assert self.translator.good(self.t, page, 0.0, 0).reason == "ok"

    def cells(self, selector: str) -> dict[str, list[float | None]]:
        found = {}
        for frame in self.window.select(matchers(selector), 0, 1e12):
            gone = is_stale(frame.values)
            for i, labels in enumerate(frame.labels):
                cells = zip(frame.values[:, i].tolist(), gone[:, i].tolist(), strict=True)
                found[labels.get("engine", "")] = [None if stale else value for value, stale in cells]
        return found


def test_a_series_can_feed_several_families():
    watched = Watched()
    watched.feed('toy:tokens_total{mode="hit"} 1000', 'toy:tokens_total{mode="miss"} 500')
    watched.feed('toy:tokens_total{mode="hit"} 3000', 'toy:tokens_total{mode="miss"} 500')
    assert watched.cells("kvitals_asked_total") == {"h:1/0": [1500.0, 3500.0]}
    assert watched.cells("kvitals_hit_total") == {"h:1/0": [1000.0, 3000.0]}
    assert watched.cells("kvitals_kilo_hits_total") == {"h:1/0": [1.0, 3.0]}
    watched.feed('toy:tokens_total{mode="miss"} 500')
    assert watched.cells("kvitals_hit_total") == {"h:1/0": [1000.0, 3000.0, None]}


def test_copies_of_a_series_are_one_in_every_family():
    watched = Watched()
    watched.feed(*(f'toy:tokens_total{{copy="{i}",mode="hit"}} 7' for i in range(3)))
    assert watched.cells("kvitals_asked_total") == watched.cells("kvitals_hit_total") == {"h:1/0": [7.0]}


def test_two_entries_of_one_name_add_up_in_one_family():
    watched = Watched()
    watched.feed('toy:old_total{mode="a"} 2', 'toy:old_total{mode="b"} 3', 'toy:old_total{mode="c"} 9')
    assert watched.cells("kvitals_old_total") == {"h:1/0": [5.0]}


def test_largest_of_several_and_no_value_at_all():
    watched = Watched()
    watched.feed('toy:load_ratio{x="1"} 0.25', 'toy:load_ratio{x="2"} 0.5', 'toy:running{x="1"} NaN')
    assert watched.cells("kvitals_load_ratio") == {"h:1/0": [0.5]}


def test_a_label_that_is_empty_is_not_there():
    watched = Watched()
    watched.feed('toy:running{priority=""} 3', 'toy:running{priority="1"} 1', 'toy:running{priority="2"} 2')
    assert watched.cells("kvitals_running") == {"h:1/0": [3.0]}


def test_a_counter_that_is_not_on_the_page_yet_is_zero():
    watched = Watched("1.3")
    ranks = ['toy:running{model="m",rank="0"} 1', 'toy:running{model="m",rank="1"} 1']
    watched.feed(*ranks)
    watched.feed(*ranks, 'toy:evicted_total{model="m",rank="1"} 5')
    assert watched.cells("kvitals_evicted_total") == {"h:1/0": [0.0, 0.0], "h:1/1": [0.0, 5.0]}
    watched.feed(*ranks)  # a restart
    assert watched.cells("kvitals_evicted_total")["h:1/1"] == [0.0, 5.0, 0.0]
    watched.feed('toy:load_ratio{rank="0"} 1', 'toy:load_ratio{rank="1"} 1')
    assert watched.cells("kvitals_evicted_total")["h:1/0"][-1] is None  # nothing that it would stand beside


def test_a_counter_that_the_version_does_not_have_is_unknown():
    watched = Watched("1.0")
    watched.feed("toy:running 1")
    assert watched.cells("kvitals_evicted_total") == {}


@pytest.mark.parametrize(("version", "role"), [("1.1", ""), ("1.2", "unified"), ("", "")])
def test_a_role_label_counts_where_it_tells_the_truth(version, role):
    watched = Watched(version)
    watched.feed('toy:running{part="whole"} 1')
    assert (watched.translator.reading.roles or {"0": ""}) == {"0": role}


def test_ignored_histograms_are_known():
    watched = Watched()
    watched.feed("toy:running 1", "toy:noise_seconds_sum 1", "toy:noise_seconds_count 1", "toy:new_seconds_sum 1")
    assert watched.translator.reading.unknown == ["toy:new_seconds_sum"]


def test_an_endpoint_can_have_lists():
    endpoint = Endpoint(numbers={"slots": "states.0.slots", "far": "states.7.slots", "odd": "states.x.slots"})
    assert endpoint.learn({"states": [{"slots": 16}]}) == ({"slots": 16.0}, {})
    assert endpoint.learn({"states": {"0": {"slots": 16}}}) == ({"slots": 16.0}, {})
