"""Which processes an engine has, and what each is. Titles are those of vLLM 0.32.0 and SGLang 0.5.23."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.agent.command_line import words
from kvitals.agent.discovery import Finder, Process
from kvitals.agent.process_titles import PARTS, part_and_rank


@dataclass
class Node:
    """A node that was written down: pid -> (parent, command line)."""

    table: Mapping[int, tuple[int, str]]
    listening: Mapping[int, set[int]] = field(default_factory=dict)
    homes: Mapping[int, set[str]] = field(default_factory=dict)

    def all(self) -> Iterator[Process]:
        for pid, (parent, line) in self.table.items():
            yield Process(pid, parent, words(line.replace(" ", "\0").encode() + b"\0"))

    def ports(self, pid: int) -> frozenset[int] | None:
        return frozenset(self.listening.get(pid, set()))

    def elsewhere(self, pid: int) -> bool:
        return pid in self.homes

    def listeners(self) -> dict[int, list[int | None]]:
        ports = {port for owned in self.listening.values() for port in owned}
        return {port: [pid or None for pid, owned in self.listening.items() if port in owned] for port in ports}

    def addresses(self) -> frozenset[str]:
        return frozenset({"127.0.0.1", "10.0.0.7"})

    def home(self, pid: int) -> frozenset[str]:
        return frozenset(self.homes.get(pid, self.addresses()))

    def started(self, pid: int) -> int:
        return pid * 100

    def file(self, pid: int, path: str) -> bytes | None:
        return None


def family(node: Node, url: str) -> dict[int, str]:
    return {ref.pid: f"{ref.part} {ref.rank}".strip() for ref in Finder({}, node).families([url])[url]}


@pytest.mark.parametrize(
    ("title", "what"),
    [
        ("VLLM::APIServer_1", ("api_server", "")),
        ("VLLM::APIServer_DP1", ("api_server", "1")),
        ("VLLM::EngineCore", ("engine_core", "")),
        ("VLLM::EngineCore_DP12", ("engine_core", "12")),
        ("VLLM::DPEngineCore_3", ("engine_core", "3")),
        ("VLLM::Worker", ("worker", "")),
        ("VLLM::Worker_TP1", ("worker", "")),
        ("VLLM::Worker_DP2_PP0_PCP1_TP1_DCP0_EP3", ("worker", "2")),
        ("VLLM::DPCoordinator", ("coordinator", "")),
        ("my-prefix::EngineCore", ("engine_core", "")),
        ("sglang::scheduler", ("engine_core", "")),
        ("sglang::scheduler_TP1", ("engine_core", "")),
        ("sglang::scheduler_DP1_PP0_ATTN_CP0_MOE_DP3_TP2_EP2", ("engine_core", "1")),
        ("sglang::scheduler_MOE_DP3_TP2", ("engine_core", "")),
        ("sglang::detokenizer", ("detokenizer", "")),
        ("sglang::tokenizer_worker:4242", ("api_server", "")),
        ("sglang::data_parallel_controller", ("coordinator", "")),
        ("VLLM::EngineCoreX", None),
        ("bash", None),
        ("", None),
        ("x" * 300 + "::EngineCore", None),
    ],
)
def test_titles(title: str, what: tuple[str, str] | None) -> None:
    assert part_and_rank(words(title.encode() + b"\0\0  ")) == what


def test_a_command_that_only_names_a_title() -> None:
    assert part_and_rank(("pkill", "VLLM::EngineCore")) is None


@given(st.lists(st.text(max_size=60), max_size=3))
def test_any_command_line(arguments: list[str]) -> None:
    found = part_and_rank(arguments)
    assert found is None or found[0] in PARTS


def test_one_api_server() -> None:
    node = Node(
        {
            1: (0, "init"),
            7: (1, "vllm serve m"),
            8: (7, "python -c multiprocessing.resource_tracker"),
            9: (7, "VLLM::EngineCore"),
            10: (9, "VLLM::Worker_TP0"),
            11: (9, "VLLM::Worker_TP1"),
            12: (1, "VLLM::EngineCore"),
        },
        listening={7: {8000}},
    )
    assert family(node, "http://127.0.0.1:8000/metrics") == {
        7: "api_server",
        8: "other",
        9: "engine_core",
        10: "worker",
        11: "worker",
    }
    assert family(node, "http://10.0.0.7:8000") == family(node, "http://127.0.0.1:8000")
    url = "http://127.0.0.1:8000"
    assert [ref.start_time for ref in Finder({}, node).families([url])[url]][:2] == [700, 800]


def test_several_api_servers_and_ranks() -> None:
    node = Node(
        {
            7: (1, "vllm serve m"),
            8: (7, "VLLM::DPCoordinator"),
            9: (7, "VLLM::EngineCore_DP0"),
            10: (7, "VLLM::EngineCore_DP1"),
            11: (7, "VLLM::APIServer_0"),
            12: (7, "VLLM::APIServer_1"),
        },
        listening={11: {8000}, 12: {8000}},
    )
    assert family(node, "http://localhost:8000") == {
        7: "other",
        8: "coordinator",
        9: "engine_core 0",
        10: "engine_core 1",
        11: "api_server",
        12: "api_server",
    }


def test_a_rank_with_a_server_of_its_own() -> None:
    node = Node(
        {
            7: (1, "vllm serve m --data-parallel-multi-port-external-lb --data-parallel-size 2"),
            8: (7, "VLLM::APIServer_DP0"),
            9: (8, "VLLM::EngineCore_DP0"),
            10: (7, "VLLM::APIServer_DP1"),
            11: (10, "VLLM::EngineCore_DP1"),
        },
        listening={8: {8000}, 10: {8001}},
    )
    assert family(node, "http://127.0.0.1:8001") == {10: "api_server 1", 11: "engine_core 1"}


def test_sglang() -> None:
    node = Node(
        {
            7: (1, "python -m sglang.launch_server --model-path m"),
            8: (7, "sglang::scheduler_TP0"),
            9: (7, "sglang::scheduler_TP1"),
            10: (7, "sglang::detokenizer"),
        },
        listening={7: {30000}},
    )
    assert list(family(node, "http://127.0.0.1:30000").values()) == [
        "api_server",
        "engine_core",
        "engine_core",
        "detokenizer",
    ]


def test_pods_are_told_by_their_addresses() -> None:
    node = Node(
        {
            7: (1, "vllm serve m"),
            8: (7, "VLLM::EngineCore"),
            9: (1, "vllm serve m"),
            10: (9, "VLLM::EngineCore"),
            11: (1, "vllm serve m --port 8001"),
        },
        homes={7: {"10.1.0.5", "127.0.0.1"}, 9: {"10.1.0.6"}, 11: {"10.1.0.6"}},
    )
    assert list(family(node, "http://10.1.0.6:8000")) == [9, 10]
    assert list(family(node, "http://10.1.0.6:8001")) == [11]
    assert family(node, "http://10.1.0.7:8000") == {}


@pytest.mark.parametrize("url", ["http://127.0.0.1:8001", "http://127.0.0.1:99999", "x", "http://[::1", ""])
def test_nothing_to_be_seen(url: str) -> None:
    node = Node({7: (1, "nginx")}, listening={7: {8001}, 0: {8002}})
    assert family(node, url) == {}
