"""What is peculiar to pages of routers and gateways: many models, lazy names, summaries, gauges called total."""

import msgspec
import yaml

from kvitals.agent.collectors.page_parser import PageParser
from kvitals.agent.collectors.page_reading import read, recognise
from kvitals.agent.collectors.status import Identity
from kvitals.agent.families import Translator
from kvitals.rules.engine_map import EngineMap
from tests.unit.agent.test_page_kinds import Watched

ROUTER = """
system: door
title: Door
kind: router
lazy: true
full_names: true
oldest: "1.0"
newest: "1.2"
recognise: {prefixes: ["door_"]}
model_label: model
metrics:
  - {raw: door_ttft_seconds, family: kvitals_ttft_seconds, unless: {leg: decode}}
  - {raw: door_backoff_seconds, family: kvitals_router_retry_backoff_seconds, flag: --retry}
  - {raw: door_up_total, family: kvitals_router_worker_healthy, labels: {server: worker}}
"""


def door() -> EngineMap:
    return msgspec.convert(yaml.safe_load(ROUTER), EngineMap)


def watched() -> Watched:
    pages = Watched()
    pages.translator = Translator(pages.window, "door", Identity("h:1", "", {}), [door()])
    return pages


def test_of_a_summary_the_sum_and_the_count_are_read():
    pages = watched()
    quantiles = [f'door_ttft_seconds{{quantile="{q}"}} 9' for q in (0.5, 0.99)]
    pages.feed(*quantiles, "door_ttft_seconds_sum 3", "door_ttft_seconds_count 2")
    assert pages.engines("kvitals_ttft_seconds_sum") == {"h:1": 3.0}
    assert pages.engines("kvitals_ttft_seconds_count") == {"h:1": 2.0}
    assert pages.now("kvitals_ttft_seconds") == {}


def test_series_that_an_entry_excludes_are_not_read():
    pages = watched()
    pages.feed('door_ttft_seconds_count{leg="decode"} 5', 'door_ttft_seconds_count{leg="whole"} 2')
    assert pages.engines("kvitals_ttft_seconds_count") == {"h:1": 2.0}


def test_a_gauge_may_be_called_total_and_fall():
    pages = watched()
    pages.feed('door_up_total{server="a"} 1')
    pages.feed('door_up_total{server="a"} 0')
    assert pages.now("kvitals_router_worker_healthy").popitem()[1] == 0.0
    assert pages.engines("kvitals_engine_restarts_total") == {"h:1": 0.0}


def test_a_page_of_several_models_is_of_none_and_its_series_are_of_each():
    pages = watched()
    pages.feed('door_ttft_seconds_count{model="a"} 1', 'door_ttft_seconds_count{model="b"} 2', "door_up_total 1")
    assert {labels["model"] for labels in pages.now("kvitals_ttft_seconds_count")} == {"a", "b"}
    assert "model" not in next(iter(pages.now("kvitals_router_worker_healthy")))
    assert "model" not in next(iter(pages.now("kvitals_engine_info")))


def test_a_page_of_one_model_is_of_it():
    pages = watched()
    pages.feed('door_ttft_seconds_count{model="a"} 1')
    assert next(iter(pages.now("kvitals_engine_info")))["model"] == "a"


def test_names_that_come_with_their_first_use_are_not_missed():
    page = PageParser().parse(b"door_up_total 1\n")
    found = recognise(page.layout, [door()])
    assert found is not None
    assert read(page.layout, found, "1.1", Identity("h:1")).missing == []


def test_what_a_program_tells_unasked():
    assert door().tells("kvitals_ttft_seconds")
    assert not door().tells("kvitals_router_retry_backoff_seconds")
    assert not door().tells("kvitals_itl_seconds")
