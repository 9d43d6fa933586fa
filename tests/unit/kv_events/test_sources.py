"""Where publishers are, by what engines say, and what of it is believed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvitals.agent.collectors.kv_events_sources import (
    MAX_RANKS,
    PublisherReport,
    PublisherSource,
    PublisherTarget,
    Refusal,
    of_flags,
    of_sglang,
    of_vllm,
    resolve,
)
from kvitals.agent.command_line import LAUNCHERS, Flags, parse

HERE = PublisherTarget("k", "127.0.0.1", True)
POD = PublisherTarget("k", "10.1.2.3", False)


def vllm(**ranks: Any) -> bytes:
    base = {"enable_kv_cache_events": True, "publisher": "zmq", "replay_endpoint": None, "topic": "", "hwm": 100_000}
    return json.dumps({rank.removeprefix("r"): {**base, **config} for rank, config in ranks.items()}).encode()


def flags(*arguments: str, system: str = "vllm") -> Flags:
    launcher = next(one for one in LAUNCHERS if one.system == system)
    return parse(launcher, arguments)


def found(
    told: tuple[PublisherReport, ...], place: PublisherTarget = HERE, **more: bool
) -> list[tuple[str, bool, str, str]]:
    sources, refusals = resolve(told, place, **more)
    assert refusals == []
    return [(one.endpoint, one.bind, one.replay, one.rank) for one in sources]


def refused(told: tuple[PublisherReport, ...], place: PublisherTarget = HERE, **more: bool) -> Refusal:
    sources, [refusal] = resolve(told, place, **more)
    assert sources == []
    return refusal


def test_vllm_tells_each_ranks_resolved_address() -> None:
    told = of_vllm(
        vllm(
            r1={"endpoint": "tcp://*:5558", "replay_endpoint": "tcp://*:5560", "topic": "kv"},
            r0={"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5559", "topic": "kv"},
        )
    )
    assert [one.topic for one in told] == ["kv", "kv"]
    assert found(told) == [
        ("tcp://127.0.0.1:5557", False, "tcp://127.0.0.1:5559", "0"),
        ("tcp://127.0.0.1:5558", False, "tcp://127.0.0.1:5560", "1"),
    ]


def test_one_rank_has_no_rank() -> None:
    assert found(of_vllm(vllm(r3={"endpoint": "tcp://*:5560"})))[0][3] == ""


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        b"[]",
        b"{",
        b"\xff",
        b'{"detail":"Not Found"}',
        b"[" * 100_000,
        vllm(r0={"publisher": "null", "endpoint": "tcp://*:5557"}),
        vllm(rx={"endpoint": "tcp://*:5557"}),
        b'{"0": {"publisher": "zmq", "endpoint": 7}}',
    ],
)
def test_what_is_no_answer_tells_nothing(answer: bytes) -> None:
    assert of_vllm(answer) == ()
    assert of_sglang(answer) == ()


def test_ranks_are_bounded() -> None:
    assert len(of_vllm(vllm(**{f"r{n}": {"endpoint": "tcp://*:5557"} for n in range(500)}))) == MAX_RANKS
    config = '{"publisher":"zmq","endpoint":"tcp://*:5557"}'
    assert (
        len(of_flags("sglang", flags("--kv-events-config", config, "--dp", "1000000000", system="sglang"))) == MAX_RANKS
    )


def test_sglang_tells_a_base_for_its_ranks() -> None:
    config = {
        "publisher": "zmq",
        "endpoint_host": "0.0.0.0",
        "endpoint_port_base": 5557,
        "replay_endpoint_port_base": 5567,
        "topic": "kv",
        "dp_size": 2,
        "block_size": 16,
    }
    told = of_sglang(json.dumps({"model_path": "x", "kv_events": config}).encode())
    assert found(told) == [
        ("tcp://127.0.0.1:5557", False, "tcp://127.0.0.1:5567", "0"),
        ("tcp://127.0.0.1:5558", False, "tcp://127.0.0.1:5568", "1"),
    ]
    assert of_sglang(b'{"kv_events": null}') == ()


def test_a_command_line_tells_of_versions_that_answer_nothing() -> None:
    config = '{"enable_kv_cache_events":true,"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5567","topic":"kv"}'
    told = of_flags("vllm", flags("--kv-events-config", config, "-dp", "2"))
    assert found(told, trusted=True) == [
        ("tcp://127.0.0.1:5557", False, "tcp://127.0.0.1:5567", "0"),
        ("tcp://127.0.0.1:5558", False, "tcp://127.0.0.1:5568", "1"),
    ]


@pytest.mark.parametrize(
    ("system", "config"),
    [
        ("vllm", "{}"),
        ("vllm", '{"enable_kv_cache_events":false,"publisher":"zmq"}'),
        ("vllm", '{"enable_kv_cache_events":true,"publisher":"null"}'),
        ("vllm", "no json"),
        ("sglang", '{"endpoint":"tcp://*:5557"}'),
        ("sglang", '{"publisher":"null"}'),
    ],
)
def test_a_command_line_that_switches_nothing_on(system: str, config: str) -> None:
    assert of_flags(system, flags("--kv-events-config", config, system=system)) == ()


def test_dynamos_mocker_has_ports_of_its_own() -> None:
    told = of_flags("vllm", flags("--zmq-kv-events-ports", "8321,8322", "--zmq-replay-ports", "8331,8332"))
    assert found(told, trusted=True) == [
        ("tcp://127.0.0.1:8321", False, "tcp://127.0.0.1:8331", "0"),
        ("tcp://127.0.0.1:8322", False, "tcp://127.0.0.1:8332", "1"),
    ]


@pytest.mark.parametrize(
    ("system", "endpoint", "reached", "bind"),
    [
        ("vllm", "tcp://*:5557", "tcp://127.0.0.1:5557", False),
        ("vllm", "tcp://[::]:5557", "tcp://127.0.0.1:5557", False),
        ("vllm", "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557", True),
        ("vllm", "tcp://localhost:5557", "tcp://127.0.0.1:5557", True),
        ("vllm", "tcp://0.0.0.0:5557", "tcp://127.0.0.1:5557", True),
        ("sglang", "tcp://0.0.0.0:5557", "tcp://127.0.0.1:5557", False),
        ("sglang", "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557", True),
    ],
)
def test_who_binds(system: str, endpoint: str, reached: str, bind: bool) -> None:
    """vLLM connects to whatever has neither * nor :: in it, 0.0.0.0 as well; SGLang binds that."""
    assert found((PublisherReport(0, endpoint, by_form=system),)) == [(reached, bind, "", "")]


def test_sglang_may_be_told_to_bind_loopback() -> None:
    config = '{"publisher":"zmq","endpoint":"tcp://127.0.0.1:5557","bind":true}'
    told = of_flags("sglang", flags("--kv-events-config", config, system="sglang"))
    assert found(told, trusted=True) == [("tcp://127.0.0.1:5557", False, "", "")]


def test_a_pod_is_reached_at_its_own_address() -> None:
    assert found((PublisherReport(0, "tcp://*:5557", "tcp://*:5558"),), POD) == [
        ("tcp://10.1.2.3:5557", False, "tcp://10.1.2.3:5558", "")
    ]
    assert found((PublisherReport(0, "tcp://10.1.2.3:40123"),), POD) == [("tcp://10.1.2.3:40123", False, "", "")]


def test_an_engine_elsewhere_does_not_make_us_listen_or_go_anywhere() -> None:
    assert refused((PublisherReport(0, "tcp://127.0.0.1:6379"),), POD).reason == "elsewhere"
    assert refused((PublisherReport(0, "tcp://169.254.169.254:80"),), POD).reason == "not_allowed"
    assert refused((PublisherReport(0, "tcp://10.9.9.9:5557", binds=True),), POD).reason == "not_allowed"
    assert refused((PublisherReport(0, "tcp://10.9.9.9:5557", binds=True),), HERE).reason == "not_allowed"
    assert found((PublisherReport(0, "tcp://*:5557", "tcp://10.9.9.9:1"),), POD)[0][2] == ""


def test_loopback_alone_is_bound_unasked() -> None:
    """Another address of this machine may be one that the engine has bound: it is tried, and never bound."""
    here = PublisherTarget("k", "10.0.0.5", True)
    assert found((PublisherReport(0, "tcp://10.0.0.5:5557"),), here) == [("tcp://10.0.0.5:5557", False, "", "")]
    allowed = PublisherTarget("k", "10.0.0.5", True, frozenset({"10.0.0.5"}))
    assert found((PublisherReport(0, "tcp://10.0.0.5:5557"),), allowed) == [("tcp://10.0.0.5:5557", True, "", "")]


def test_ports_of_the_system_are_not_bound() -> None:
    assert refused((PublisherReport(0, "tcp://127.0.0.1:22"),)).reason == "bad_endpoint"


def test_a_path_only_where_a_command_line_or_the_configuration_names_it() -> None:
    told = (PublisherReport(0, "ipc:///run/kv.sock"),)
    assert refused(told).reason == "not_allowed"
    assert found(told, trusted=True) == [("ipc:///run/kv.sock", False, "", "")]
    assert refused(told, POD, trusted=True).reason == "not_allowed"


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("inproc://cache", "inproc"),
        ("tcp://*:0", "bad_endpoint"),
        ("tcp://*:99999", "bad_endpoint"),
        ("tcp://*", "bad_endpoint"),
        ("udp://*:5557", "bad_endpoint"),
        ("", "bad_endpoint"),
        ("tcp://" + "a" * 1000 + ":5557", "bad_endpoint"),
        ("tcp://a;b:5557", "bad_endpoint"),
    ],
)
def test_what_can_not_be_listened_to_says_why(endpoint: str, reason: str) -> None:
    refusal = refused((PublisherReport(0, endpoint),), trusted=True)
    assert refusal.reason == reason and len(refusal.message) < 300


def test_a_source_has_its_target_and_topic() -> None:
    [source], _ = resolve((PublisherReport(0, "tcp://*:5557", topic="kv@a"),), HERE)
    assert source == PublisherSource("k", "tcp://127.0.0.1:5557", topic="kv@a")
