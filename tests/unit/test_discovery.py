from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.agent.command_line import MAX_CONFIG_BYTES, Flags, launched_engine, parse, words
from kvitals.agent.discovery import DiscoveredTarget, DiscoveredTargets, DiscoveryError, Finder, Process, System
from kvitals.rules.engine_map import EngineMap, load_map

VLLM = msgspec.convert(
    {
        "system": "vllm",
        "title": "vLLM",
        "oldest": "0.9.0",
        "newest": "0.32.0",
        "recognise": {"prefixes": ["vllm:"], "version_path": "/version", "models_path": "/v1/models"},
        "rank_labels": ["engine"],
        "model_label": "model_name",
        "start_time": "process_start_time_seconds",
        "metrics": [],
        "flags": {
            "max-num-seqs": {"fact": "slots", "defaults": [{"value": 256.0, "versions": ">=0.30"}]},
            "max-num-batched-tokens": {"fact": "token_budget"},
            "tensor-parallel-size": {"fact": "tp"},
            "enable-prefix-caching": {"fact": "prefix_caching"},
            "speculative-config.num_speculative_tokens": {"fact": "draft_tokens"},
            "kv-transfer-config.kv_connector": {"info": "connector"},
            "kv-cache-dtype": {"info": "kv_cache_dtype"},
            "model": {"info": "root"},
        },
    },
    EngineMap,
)
MAPS = {"vllm": VLLM}

API_SERVER = "python -m vllm.entrypoints.openai.api_server"


@dataclass
class Node:
    """A node that was written down: pid -> (parent, command line), and what may be seen of it."""

    table: Mapping[int, tuple[int, str | tuple[str, ...]]]
    listening: Mapping[int, set[int] | None] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    contained: set[int] = field(default_factory=set)
    environment: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    def variable(self, pid: int, name: str) -> str:
        return self.environment.get(pid, {}).get(name, "")

    def all(self) -> Iterator[Process]:
        for pid, (parent, line) in self.table.items():
            raw = line.encode() if isinstance(line, str) else "\0".join(line).encode() + b"\0"
            yield Process(pid, parent, words(raw))

    def ports(self, pid: int) -> frozenset[int] | None:
        ports = self.listening.get(pid, set())
        return None if ports is None else frozenset(ports)

    def elsewhere(self, pid: int) -> bool:
        return pid in self.contained

    searches: int = 0

    def listeners(self) -> dict[int, list[int | None]]:
        self.searches += 1
        owned = {pid: ports or set() for pid, ports in self.listening.items()}
        every = {port for ports in owned.values() for port in ports}
        return {port: [pid or None for pid, ports in owned.items() if port in ports] for port in every}

    def addresses(self) -> frozenset[str]:
        return frozenset({"127.0.0.1", "10.0.0.7", "::1"})

    def started(self, pid: int) -> int:
        return pid

    def file(self, pid: int, path: str) -> bytes | None:
        return self.files.get(path)


def scan(line: str | tuple[str, ...], **more: object) -> DiscoveredTargets:
    return Finder(MAPS, Node({7: (1, line)}, **more)).scan()  # type: ignore[arg-type]


def behind(finder: Finder, url: str) -> DiscoveredTarget:
    [found] = finder.behind([url]).values()
    if isinstance(found, DiscoveryError):
        raise found
    return found


def only(line: str | tuple[str, ...], **more: object) -> DiscoveredTarget:
    (target,) = scan(line, **more).targets
    return target


@pytest.mark.parametrize(
    ("line", "url"),
    [
        (f"{API_SERVER} --model m", "http://127.0.0.1:8000"),
        (("/opt/venv/bin/python3.12", "-u", "-X", "dev", *API_SERVER.split()[1:], "--port", "8201"), "8201"),
        (("/usr/bin/python3", "/usr/local/bin/vllm", "serve", "Qwen/Qwen3-8B", "--port=9000"), "9000"),
        (("vllm", "serve", "m", "--port", "8001", "--port", "8002"), "8002"),
        (("python", "/x/vllm/entrypoints/openai/api_server.py", "--port", "8003"), "8003"),
        (("vllm", "serve", "m", "--host", "10.0.0.7"), "http://10.0.0.7:8000"),
        (("vllm", "serve", "m", "--host", "::", "--port", "1"), "http://[::1]:1"),
        (("vllm", "serve", "m", "--host", "0.0.0.0"), "http://127.0.0.1:8000"),
        (("vllm", "serve", "m", "--ssl-certfile", "c.pem"), "https://127.0.0.1:8000"),
        (("vllm", "serve", "m", "--port", "none of yours"), "http://127.0.0.1:8000"),
        (("vllm", "serve", "m", "--port", "99999"), "http://127.0.0.1:8000"),
        (("python3", "-m", "sglang.launch_server", "--model-path", "m"), "http://127.0.0.1:30000"),
    ],
)
def test_where_an_engine_serves(line: str | tuple[str, ...], url: str) -> None:
    assert only(line).url.endswith(url)


@pytest.mark.parametrize(
    "line",
    [
        ("grep", "vllm", "serve"),
        ("bash", "-c", "vllm serve m"),
        ("docker", "run", "vllm/vllm-openai", "vllm", "serve", "m"),
        ("vllm", "bench", "serve", "--port", "8000"),
        ("vllm",),
        ("python", "-c", "import vllm; serve()"),
        ("python", "-m"),
        ("python",),
        ("python", "-X"),
        "VLLM::EngineCore",
        "",
        "\0\0",
    ],
)
def test_what_is_no_engine(line: str | tuple[str, ...]) -> None:
    assert scan(line) == DiscoveredTargets()


def test_only_mapped_flags_are_kept() -> None:
    secrets = (
        "--api-key",
        "sk-secret-1",
        "--hf-token=sk-secret-2",
        "--default-mm-loras",
        '{"t":"sk-secret-3"}',
    )
    node = Node({7: (1, ("vllm", "serve", "m", *secrets, "--max-num-seqs", "32"))})
    target = only(("vllm", "serve", "m", *secrets, "--max-num-seqs", "32"))
    assert target.learn() == ({"slots": 32.0}, {"root": "m"})
    assert target.flags.get("api-key") is None
    (process,) = node.all()
    match = launched_engine(process.arguments)
    assert match is not None
    for shown in (repr(target), repr(process), repr(parse(*match))):
        assert "sk-secret" not in shown


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        ("--max-num-seqs 16", {"slots": 16}),
        ("--max_num_seqs=16", {"slots": 16}),
        ("-tp 2 --max-num-batched-tokens 8k", {"tp": 2, "token_budget": 8000}),
        ("-tp=2 --max-num-batched-tokens 8K", {"tp": 2, "token_budget": 8192}),
        ("--max-num-batched-tokens 1.5k", {"token_budget": 1500}),
        ("--enable-prefix-caching", {"prefix_caching": 1}),
        ("--no-enable-prefix-caching", {"prefix_caching": 0}),
        ("--no-enable-prefix-caching --enable-prefix-caching", {"prefix_caching": 1}),
        ("--enable-prefix-caching --no-enable-prefix-caching", {"prefix_caching": 0}),
        ("--speculative-config.num_speculative_tokens 4", {"draft_tokens": 4}),
        ('--speculative-config \'{"num_speculative_tokens": 3, "method": "ngram"}\'', {"draft_tokens": 3}),
        ('-sc \'{"method": "ngram"}\' -sc.num_speculative_tokens 5', {"draft_tokens": 5}),
        ("--max-num-seqs auto", {}),
        ("--max-num-seqs", {"slots": 1}),
        ("--max-num-seqs nan -tp inf", {}),
        ("--max-num-seqs 1e300 -tp 9" + "9" * 400, {}),
        ("--speculative-config '{broken'", {}),
        ("--speculative-config " + "[" * 5000, {}),
        ("--speculative-config " + '{"a":' * 5000, {}),
    ],
)
def test_flags_become_facts(flags: str, facts: dict[str, float]) -> None:
    assert only(f"vllm serve {flags}").learn()[0] == facts


def test_defaults_need_the_version() -> None:
    target = only("vllm serve m")
    assert target.learn()[0] == {}
    assert target.learn("0.32.0")[0] == {"slots": 256}


@pytest.mark.parametrize(
    ("flags", "unset"), [("", True), ("--max-num-batched-tokens 512", False), ("--max-num-batched-tokens auto", False)]
)
def test_a_flag_that_is_not_there_is_listed_where_the_version_is_known(flags: str, unset: bool) -> None:
    target = replace(only(f"vllm serve m {flags}"), engine_map=load_map("vllm"))
    assert "unset" not in target.learn()[1]
    listed = target.learn("0.32.0")[1]["unset"].split(",")
    assert ("token_budget" in listed) is unset
    assert "block_tokens" not in listed, "the page reports it whether or not the flag is given"
    assert "tensor_parallel" not in listed, "its default is known"


def test_an_engine_without_a_map() -> None:
    assert only("python -m sglang.launch_server --max-running-requests 4").learn() == ({}, {})


def test_the_model_behind_a_switch_is_found() -> None:
    assert only(("vllm", "serve", "--enable-prefix-caching", "m", "-tp", "2")).learn()[1] == {"root": "m"}


@pytest.mark.parametrize("flags", ["--api-key sk-1 sk-2", "--port 1 --api-key sk-1 sk-2 sk-3"])
def test_a_second_value_is_not_the_model(flags: str) -> None:
    assert only(f"{API_SERVER} {flags}").learn()[1] == {}
    assert only(f"vllm serve m {flags}").learn()[1] == {"root": "m"}


def test_texts_are_kept_as_info() -> None:
    line = (
        "vllm",
        "serve",
        "m",
        "--kv-cache-dtype",
        "fp8",
        "--kv-transfer-config",
        '{"kv_connector":"Nixl"}',
    )
    assert only(line).learn()[1] == {"root": "m", "kv_cache_dtype": "fp8", "connector": "Nixl"}


def test_a_title_is_split_as_a_shell_would() -> None:
    title = f"{API_SERVER} --model '/models/my model' --speculative-config '{{\"num_speculative_tokens\": 2}}'"
    target = only(title + "\0" * 40)
    assert target.learn()[1] == {"root": "/models/my model"}
    assert target.learn()[0] == {"draft_tokens": 2}


def test_a_title_with_a_stray_quote_is_split_at_spaces() -> None:
    assert only(f"{API_SERVER} --model it's --max-num-seqs 4 --port 8205").learn()[0] == {"slots": 4}


def test_config_file_comes_before_the_command_line() -> None:
    config = b"port: 9100\nmax_num_seqs: 64\ntensor-parallel-size: 4\nenable-prefix-caching: false\n"
    target = only(("vllm", "serve", "m", "--config", "serve.yaml", "-tp", "2"), files={"serve.yaml": config})
    assert target.url == "http://127.0.0.1:9100"
    assert target.learn()[0] == {"slots": 64, "tp": 2, "prefix_caching": 0}


def test_nested_config() -> None:
    config = b"speculative-config:\n  method: ngram\n  num_speculative_tokens: 3\n"
    assert only("vllm serve m --config=c.yaml", files={"c.yaml": config}).learn()[0] == {"draft_tokens": 3}


@pytest.mark.parametrize(
    "config",
    [
        b"- a\n- b\n",
        b"port: [",
        b"\xff\xfe\x00",
        b"port: 2024-99-99",
        b"max-num-seqs: " + b"9" * 5000,
        b"0x" + b"f" * 5000 + b": 1",
        b"port: !!bool x",
        b"a: &a [x]\nport: 9100\nb: *a\n",
        b"!!python/object/apply:os.system ['true']",
        b"[" * 20000,
        b"port: 9100\n" + b"#" * MAX_CONFIG_BYTES,
    ],
    ids=["list", "broken", "binary", "date", "digits", "hexadecimal", "bool", "alias", "tag", "nested", "large"],
)
def test_bad_config_files_say_nothing(config: bytes) -> None:
    target = only("vllm serve m --config c.yaml", files={"c.yaml": config})
    assert target.url == "http://127.0.0.1:8000"
    assert target.learn()[0] == {}


@pytest.mark.parametrize(
    ("flags", "note"),
    [
        ("--uds /run/vllm.sock", "Unix socket"),
        ("--headless", "headless"),
        ("--grpc", "gRPC"),
        ("--host evil.example", "not an address of this node"),
        ("--host 169.254.169.254", "not an address of this node"),
    ],
)
def test_what_cannot_be_scraped_is_said(flags: str, note: str) -> None:
    found = scan(f"vllm serve m {flags}")
    assert found.targets == ()
    assert len(found.notes) == 1 and note in found.notes[0] and "pid 7" in found.notes[0]


def test_an_engine_in_a_container_is_said() -> None:
    assert "[[target]] url" in scan("vllm serve m", contained={7}).notes[0]


def test_one_server_for_a_tree_of_processes() -> None:
    """`sudo` above, two API servers below; a fork that kept the command line is no second server."""
    node = Node(
        {
            1: (0, "init"),
            6: (1, ("sudo", "vllm", "serve", "m")),
            7: (6, ("/usr/bin/python3", "/usr/bin/vllm", "serve", "m", "--api-server-count", "2")),
            8: (7, "VLLM::APIServer_0"),
            9: (7, "VLLM::APIServer_1"),
            10: (7, ("/usr/bin/python3", "/usr/bin/vllm", "serve", "m", "--api-server-count", "2")),
            11: (1, ("vllm", "serve", "other", "--port", "8001")),
        },
        listening={9: {8000}, 11: {4444}},
    )
    targets = Finder(MAPS, node).scan().targets
    assert [(t.pid, t.url, t.listening) for t in targets] == [
        (7, "http://127.0.0.1:8000", True),
        (11, "http://127.0.0.1:8001", False),
    ]


def test_sockets_that_cannot_be_read() -> None:
    assert only("vllm serve m", listening={7: None}).listening is None


def test_every_local_rank_with_its_own_server() -> None:
    line = "vllm serve m -dpm --data-parallel-size 4 --data-parallel-size-local 2 --port 8000"
    assert [t.url[-4:] for t in scan(line).targets] == ["8000", "8001"]
    assert len(scan("vllm serve m -dpm -dp 1e9 --port 65530").targets) == 6


def test_parents_that_form_a_ring_end() -> None:
    node = Node({1: (2, "a"), 2: (1, "vllm serve m"), 3: (3, "vllm serve m --port 1")})
    assert len(Finder(MAPS, node).scan().targets) == 2


class TestBehind:
    node = Node(
        {
            5: (1, ("vllm", "serve", "m", "--max-num-seqs", "2", "--port", "80")),
            6: (5, "VLLM::APIServer_0"),
            7: (1, ("nginx",)),
        },
        listening={6: {8201}, 7: {8202}, 0: {8203}},
    )

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.0.0.5"])
    def test_the_owner_of_the_socket_decides(self, host: str) -> None:
        url = f"http://{host}:8201/metrics"
        target = behind(Finder(MAPS, self.node), url)
        assert (target.pid, target.url, target.listening) == (5, url, True)
        assert target.learn()[0] == {"slots": 2}

    @pytest.mark.parametrize(
        ("url", "says"),
        [
            ("http://10.0.0.9:8201", "not on this node"),
            ("http://example.com:8201", "not on this node"),
            ("http://127.0.0.1:99999", "not on this node"),
            ("127.0.0.1", "not on this node"),
            ("http://127.0.0.1:8300", "no process on this node listens on port 8300"),
            ("http://127.0.0.1:8202", "not an engine that kvitals knows"),
            ("http://127.0.0.1:8203", "another user"),
        ],
    )
    def test_why_not(self, url: str, says: str) -> None:
        with pytest.raises(DiscoveryError, match=says):
            behind(Finder(MAPS, self.node), url)

    def test_a_thousand_targets_take_one_search(self) -> None:
        node = Node(self.node.table, self.node.listening)
        urls = [f"http://127.0.0.1:{port}" for port in range(8200, 9200)]
        found = Finder(MAPS, node).behind(urls)
        assert [url for url in urls if isinstance(found[url], DiscoveredTarget)] == ["http://127.0.0.1:8201"]
        assert len(found) == 1000 and node.searches == 1
        node.searches = 0
        Finder(MAPS, node).families(urls)
        assert node.searches == 1


@given(st.binary(max_size=300))
def test_any_command_line(raw: bytes) -> None:
    engine = b"vllm\0serve\0" + raw
    for line in (raw, engine, engine.replace(b"\0", b" ")):
        match = launched_engine(words(line))
        if match:
            flags: Flags = parse(*match, config=raw)
            assert isinstance(flags.text("port"), str)


class TestThisMachine:
    """The same with real processes, files and sockets."""

    @pytest.fixture
    def serve(self, tmp_path: Path) -> Iterator[tuple[psutil.Process, int]]:
        """A process that looks like an engine, with a config file of its own, and a real port."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        package = tmp_path / "vllm" / "entrypoints" / "openai"
        package.mkdir(parents=True)
        script = package / "api_server.py"
        script.write_text(
            f"import socket, time\nlistener = socket.create_server(('127.0.0.1', {port}))\ntime.sleep(60)\n"
        )
        (tmp_path / "serve.yaml").write_text(f"port: {port}\nmax-num-seqs: 5\n")
        line = [sys.executable, str(script), "--config", "serve.yaml", "--api-key", "sk-1", "-tp", "3"]
        with subprocess.Popen(line, cwd=tmp_path) as process:
            try:
                watched = psutil.Process(process.pid)
                deadline = time.monotonic() + 10
                while port not in (System().ports(process.pid) or ()) and time.monotonic() < deadline:
                    time.sleep(0.02)
                yield watched, port
            finally:
                process.kill()

    def test_a_real_process(self, serve: tuple[psutil.Process, int]) -> None:
        process, port = serve
        finder = Finder(MAPS)
        (target,) = (t for t in finder.scan().targets if t.pid == process.pid)
        assert target.url == f"http://127.0.0.1:{port}"
        assert target.learn()[0] == {"slots": 5, "tp": 3}
        assert target.listening is True
        assert behind(finder, f"http://localhost:{port}").learn() == target.learn()

    def test_processes_that_end_or_hide(self) -> None:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        assert System().ports(gone.pid) is None
        assert System().file(gone.pid, "/etc/hostname") is None
        assert System().elsewhere(gone.pid) is False
        assert System().elsewhere(os.getpid()) is False
        assert "127.0.0.1" in System().addresses()
        assert any(process.pid == os.getpid() for process in System().all())

    def test_files_that_would_block_or_never_end(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "large").write_bytes(b"x" * (MAX_CONFIG_BYTES * 2))
        assert System().file(os.getpid(), str(tmp_path / "pipe")) is None
        assert System().file(os.getpid(), "/dev/zero") is None
        assert System().file(os.getpid(), str(tmp_path)) is None
        assert System().file(os.getpid(), "a\0b") is None
        assert len(System().file(os.getpid(), str(tmp_path / "large")) or b"") == MAX_CONFIG_BYTES + 1

    def test_errors_of_psutil_are_not_ours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def denied(*_: object) -> None:
            raise psutil.AccessDenied(1)

        monkeypatch.setattr(psutil, "net_connections", denied)
        monkeypatch.setattr(psutil.Process, "ppid", denied)
        monkeypatch.setattr(psutil, "net_if_addrs", denied)
        assert System().listeners() is None
        assert "another user" in str(Finder(MAPS).behind(["http://127.0.0.1:1"])["http://127.0.0.1:1"])
        assert list(System().all()) == []
        assert System().addresses() == frozenset()


# Dynamo


def urls(node: Node) -> list[str]:
    return [target.url for target in Finder(MAPS, node).scan().targets]


def test_a_dynamo_frontend_is_found_by_its_own_flags_and_variables():
    line = "python -m dynamo.frontend --http-host 127.0.0.1 --router-mode kv"
    assert urls(Node({10: (1, f"{line} --http-port 8300")})) == ["http://127.0.0.1:8300"]
    assert urls(Node({10: (1, line)}, environment={10: {"DYN_HTTP_PORT": "8400"}})) == ["http://127.0.0.1:8400"]
    assert urls(Node({10: (1, line)})) == ["http://127.0.0.1:8000"]


def test_a_dynamo_worker_is_an_engine_at_the_port_that_its_environment_names():
    line = "python -m dynamo.vllm --model m --max-num-seqs 7 --port 1"
    found = Finder(MAPS, Node({10: (1, line)}, environment={10: {"DYN_SYSTEM_PORT": "8301"}})).scan()
    (target,) = found.targets
    assert (target.system, target.url) == ("vllm", "http://127.0.0.1:8301")
    assert target.learn("0.32.0")[0]["slots"] == 7.0


@pytest.mark.parametrize("port", ["", "0", "70000", "eighty", "-1", "9" * 400])
def test_a_dynamo_worker_without_a_port_has_no_page(port):
    line = "python -m dynamo.mocker --model-path m"
    found = Finder(MAPS, Node({10: (1, line)}, environment={10: {"DYN_SYSTEM_PORT": port}})).scan()
    assert found.targets == ()
    assert "set DYN_SYSTEM_PORT" in found.notes[0]


def test_one_variable_of_a_real_process_is_read_and_no_other():
    assert System().variable(os.getpid(), "PATH") == os.environ["PATH"]
    assert System().variable(os.getpid(), "PAT") == ""
    assert System().variable(2**22 + 1, "PATH") == ""


@pytest.mark.parametrize(
    "arguments, name, value",
    [
        ("vllm serve --trust-remote-code org/model", "trust-remote-code", True),
        ("vllm serve --trust-remote-code org/model", "model", "org/model"),
        ("vllm serve m -asc 4", "api-server-count", "4"),
        ("vllm serve m --device-memory-utilization 0.8", "gpu-memory-utilization", "0.8"),
        ("sglang serve --pp-size 2", "pipeline-parallel-size", "2"),
        ("sglang serve --tensor-parallel-size 2", "tensor-parallel-size", "2"),
        ("sglang serve --enable-hicache --hicache-ratio 2", "enable-hierarchical-cache", True),
        ("sglang serve --skip-tokenizer-init --model m", "skip-tokenizer-init", True),
    ],
)
def test_spellings_and_switches_are_those_of_the_engines(arguments: str, name: str, value: object) -> None:
    match = launched_engine(tuple(arguments.split()))
    assert match is not None
    assert parse(*match).get(name) == value
