"""What a page is of: copies of ranks, guests, servers beside ranks, exporters, blanks, edges, other spellings."""

import msgspec
import pytest
import yaml

from kvitals.agent.collectors.page_parser import PageParser
from kvitals.agent.collectors.page_reading import recognise
from kvitals.agent.collectors.status import Identity
from kvitals.agent.families import SERVER_INFO, Translator
from kvitals.rules.engine_map import Endpoint, EngineMap
from kvitals.series.types import Labels, is_stale
from kvitals.series.window import Window
from tests.unit.agent.page_stage import matchers

ENGINE = """
system: toy
title: Toy
oldest: "1.0"
newest: "1.2.3"
recognise: {prefixes: ["toy:"], info_path: /server_info}
rank_labels: [dp_rank]
replica_labels: [tp_rank]
server: frontend
model_label: model
role_label: part
roles: {p: prefill, d: decode}
metrics:
  - {raw: running, family: kvitals_requests_running}
  - {raw: ttft_seconds, family: kvitals_ttft_seconds}
  - {raw: copied_bytes_total, family: kvitals_copied_bytes_total, replicas: sum}
  - {raw: paused, family: kvitals_paused, replicas: max}
"""
GUEST = """
system: lodger
title: Lodger
oldest: "0.1"
newest: "0.2"
guest: true
kind: store
recognise: {prefixes: ["lodger:"]}
replica_labels: [worker]
metrics:
  - {raw: hits_total, family: kvitals_lodger_hits_total, versions: "<0.1"}
  - {raw: load_ms, family: kvitals_lodger_seconds, scale: 0.001}
ignored: {noise: of no use}
"""
EXPORTER = """
system: gpus
title: GPUs
kind: exporter
full_names: true
oldest: "3"
newest: "4"
recognise: {prefixes: ["GPU_"]}
series_labels: {gpu: [UUID/INSTANCE], node: [Hostname]}
users: [namespace, pod]
blank: 9.2e+18
metrics:
  - {raw: GPU_POWER, family: kvitals_gpu_power_watts, fold: max}
  - {raw: GPU_XID, family: kvitals_gpu_last_xid, fold: max, changes: kvitals_gpu_xid_events_total}
"""


def maps() -> list[EngineMap]:
    return [msgspec.convert(yaml.safe_load(text), EngineMap) for text in (GUEST, ENGINE, EXPORTER)]


class Watched:
    """A target that is fed with pages a second apart."""

    def __init__(self, prefixes: dict[str, str] | None = None, **labels: str) -> None:
        self.window = Window(1000.0, 1000)
        self.translator = Translator(self.window, "t", Identity("h:1", "", labels), maps(), prefixes)
        self.parser, self.t = PageParser(), 0.0

    def feed(self, *lines: str) -> str:
        self.t += 1.0
        page = self.parser.parse(("\n".join(lines) + "\n").encode())
        return self.translator.good(self.t, page, 0.0, 0).reason

    def now(self, selector: str) -> dict[Labels, float]:
        found = {}
        for frame in self.window.select(matchers(selector), 0, 1e12):
            gone = is_stale(frame.values[-1])
            found |= {
                labels.drop("__name__"): float(v)
                for labels, v, stale in zip(frame.labels, frame.values[-1], gone, strict=True)
                if not stale
            }
        return found

    def engines(self, family: str) -> dict[str, float]:
        return {labels.get("engine", ""): value for labels, value in self.now(family).items()}


def test_of_the_copies_of_a_number_one_is_taken_and_shares_are_summed():
    watched = Watched()
    watched.feed(
        *(f'toy:running{{dp_rank="0",tp_rank="{tp}"}} 5' for tp in (10, 2)),
        *(f'toy:copied_bytes_total{{dp_rank="0",tp_rank="{tp}"}} 100' for tp in (10, 2)),
        *(f'toy:paused{{dp_rank="0",tp_rank="{tp}"}} {tp}' for tp in (10, 2)),
    )
    assert watched.engines("kvitals_requests_running") == {"h:1/0": 5.0}
    assert watched.engines("kvitals_copied_bytes_total") == {"h:1/0": 200.0}
    assert watched.engines("kvitals_paused") == {"h:1/0": 10.0}


def test_copies_are_told_from_parts_that_add_up():
    watched = Watched()
    watched.feed(*(f'toy:running{{dp_rank="0",tp_rank="{tp}",stream="{s}"}} 2' for tp in (0, 1) for s in "ab"))
    assert watched.engines("kvitals_requests_running") == {"h:1/0": 4.0}


def test_the_server_of_several_ranks_is_an_entity_of_its_own():
    watched = Watched()
    watched.feed('toy:running{dp_rank="0"} 1', 'toy:running{dp_rank="1"} 2', "toy:ttft_seconds_count 7")
    assert watched.engines("kvitals_target_up") == {"h:1/0": 1.0, "h:1/1": 1.0, "h:1": 1.0}
    assert watched.engines("kvitals_ttft_seconds_count") == {"h:1": 7.0}
    kinds = {labels["engine"]: labels["kind"] for labels in watched.now("kvitals_engine_info")}
    assert kinds == {"h:1/0": "scheduler", "h:1/1": "scheduler", "h:1": "frontend"}


def test_with_one_rank_the_server_is_the_engine():
    watched = Watched()
    watched.feed("toy:running 1", 'toy:ttft_seconds_count{part="d"} 7')
    assert watched.engines("kvitals_target_up") == {"h:1/0": 1.0}
    (info,) = watched.now("kvitals_engine_info")
    assert (info["kind"], info["role"]) == ("engine", "decode")


def test_a_role_that_the_user_gave_holds():
    watched = Watched(role="prefill")
    watched.feed('toy:running{part="d"} 1')
    (info,) = watched.now("kvitals_engine_info")
    assert info["role"] == "prefill"


def test_a_guest_on_an_engines_page_is_read_along_and_never_missing():
    watched = Watched()
    watched.feed(
        "toy:running 1", 'lodger:hits_total{worker="0"} 3', 'lodger:hits_total{worker="1"} 3', "lodger:noise 1"
    )
    assert watched.engines("kvitals_lodger_hits_total") == {"h:1/0": 3.0}
    reading = watched.translator.reading
    assert reading.unknown == [] and not [f for f, _ in reading.missing if f.startswith("kvitals_lodger")]
    (info,) = watched.now("kvitals_engine_info")
    assert (info["system"], info["kind"]) == ("toy", "engine")


def test_a_guests_unknown_names_are_counted():
    watched = Watched()
    watched.feed("toy:running 1", "lodger:new_thing 1")
    assert watched.translator.reading.unknown == ["lodger:new_thing"]


def test_a_guest_alone_is_a_program_of_its_own():
    watched = Watched()
    assert watched.feed("lodger:load_ms 30") == "ok"
    assert watched.engines("kvitals_lodger_seconds") == {"h:1": 0.03}


def test_an_exporters_series_are_of_what_their_labels_say():
    watched = Watched()
    watched.feed('GPU_POWER{UUID="a",Hostname="n1"} 300', 'GPU_POWER{UUID="b",INSTANCE="3",Hostname="n1"} 200')
    found = watched.now("kvitals_gpu_power_watts")
    assert found == {Labels({"gpu": "a", "node": "n1"}): 300.0, Labels({"gpu": "b/3", "node": "n1"}): 200.0}
    assert watched.engines("kvitals_target_up") == {"h:1": 1.0}
    (info,) = watched.now("kvitals_engine_info")
    assert info["kind"] == "exporter"


def test_a_nodes_own_name_holds_and_series_of_nothing_are_left_out():
    watched = Watched(node="mine")
    watched.feed('GPU_POWER{UUID="a",Hostname="n1"} 300', "GPU_POWER 1")
    assert watched.now("kvitals_gpu_power_watts") == {Labels({"gpu": "a", "node": "mine"}): 300.0}


def test_a_shared_gpu_is_marked_and_not_summed():
    watched = Watched(node="n")
    watched.feed(*(f'GPU_POWER{{UUID="a",namespace="x",pod="{pod}"}} 300' for pod in ("p1", "p2")))
    assert watched.now("kvitals_gpu_power_watts") == {Labels({"gpu": "a", "node": "n"}): 300.0}
    assert {labels["user"] for labels in watched.now("kvitals_gpu_user")} == {"x/p1", "x/p2"}


def test_a_blank_is_no_value():
    watched = Watched()
    watched.feed('GPU_POWER{UUID="a"} 9223372036854775794', 'GPU_POWER{UUID="b"} 5')
    assert list(watched.now("kvitals_gpu_power_watts").values()) == [5.0]
    watched.feed('GPU_POWER{UUID="a"} 7', 'GPU_POWER{UUID="b"} 9223372036854775794')
    assert list(watched.now("kvitals_gpu_power_watts").values()) == [7.0]


def test_an_event_is_a_change_to_another_code():
    watched = Watched()
    seen = []
    for code in (31, 31, 79, 79, 0, 79):
        watched.feed(f'GPU_XID{{UUID="a"}} {code}')
        seen += watched.now("kvitals_gpu_xid_events_total").values()
    assert seen == [0, 0, 1, 1, 1, 2]
    assert list(watched.now("kvitals_gpu_last_xid").values()) == [79.0]


def test_events_are_still_counted_when_another_gpu_appears():
    watched = Watched()
    for lines in (["a 31"], ["a 79"], ["a 79", "b 13"], ["a 79", "b 14"]):
        watched.feed(*(f'GPU_XID{{UUID="{gpu}"}} {code}' for gpu, code in map(str.split, lines)))
    assert sorted(watched.now("kvitals_gpu_xid_events_total").values()) == [1.0, 1.0]


def test_names_that_begin_otherwise_are_read_as_the_maps_have_them():
    watched = Watched({"acme_": "toy:"})
    assert watched.feed("acme_running 4") == "ok"
    assert watched.engines("kvitals_requests_running") == {"h:1/0": 4.0}
    assert Watched().feed("acme_running 4") == "no_engine"


def test_the_map_with_most_names_is_the_pages_unless_a_name_decides():
    parser = PageParser()
    page = parser.parse(b'toy:running 1\ntoy:paused 1\nGPU_POWER{UUID="a"} 1\n')
    assert recognise(page.layout, maps()).system == "toy"
    guest, engine, exporter = maps()
    decided = msgspec.structs.replace(
        exporter, recognise=msgspec.structs.replace(exporter.recognise, names=("GPU_POWER",))
    )
    assert recognise(page.layout, [guest, engine, decided]).system == "gpus"


ANSWER = {"version": "1.2.3", "args": {"slots": 64, "off": False, "path": None, "api_key": "secret"}, "wide": 1e300}


def test_an_endpoint_tells_what_the_map_names_and_nothing_else():
    endpoint = Endpoint(
        numbers={"slots": "args.slots", "wide": "wide", "none": "args.nothing"},
        strings={"version": "version", "path": "args.path"},
        given={"traced": "args.path", "elsewhere": "args.gone"},
        absent={"caching": "args.off"},
    )
    facts, info = endpoint.learn(ANSWER)
    assert facts == {"slots": 64.0, "traced": 0.0, "caching": 1.0}
    assert info == {"version": "1.2.3"}


@pytest.mark.parametrize("answer", [None, [], "text", 5, {"args": [1]}, {"args": {"slots": "many"}}])
def test_an_answer_of_another_shape_tells_nothing(answer):
    endpoint = Endpoint(numbers={"slots": "args.slots"}, strings={"version": "args.version"})
    assert endpoint.learn(answer) == ({}, {})


def test_the_version_may_come_with_the_server_info():
    watched = Watched()
    watched.feed("toy:running 1")
    watched.translator.learn(SERVER_INFO, {}, {"version": "1.3.0"})
    watched.feed("toy:running 1")
    (info,) = watched.now("kvitals_engine_info")
    assert info["version"] == "1.3.0" and info["untested"] == "true"


@pytest.mark.parametrize(
    ("version", "says"), [("1.2.3", False), ("1.2.3.post1", False), ("1.2.4", True), ("1.3", True)]
)
def test_newer_than_the_map_is_untested(version, says):
    assert maps()[1].untested(version) == says
