"""`kvitals init` and `kvitals config check` as a user would type them."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from kvitals.agent.discovery import DiscoveredTarget, DiscoveredTargets
from kvitals.agent.records import GpuReading, GpuRecord
from kvitals.app.demo import HEAVY_TENANT
from kvitals.app.first_configuration import MachineSurvey, configuration_text
from kvitals.app.serve_recorded import serve
from kvitals.config import build
from kvitals.ui.cli import config as command
from kvitals.ui.cli.main import main
from tests.support.loops import for_each
from tests.support.processes import free_port

NOTHING = MachineSurvey(DiscoveredTargets(), GpuRecord(t=0.0, state="not_applicable", reason="no_gpu"), 0.0)
BUSY = MachineSurvey(
    DiscoveredTargets(
        (
            DiscoveredTarget("vllm", "http://127.0.0.1:8000", 41, True),
            DiscoveredTarget('sg"lang\n[x]', "http://127.0.0.1:30000", 42, False),
        ),
        ("vllm (pid 43) has no port\x1b[31m\n[[target]]",),
    ),
    GpuRecord(t=0.0, driver="570.1", gpus=[GpuReading(gpu=name, index=0, hardware="NVIDIA H200") for name in "ab"]),
    0.0,
)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert isinstance(stop.value.code, int)
    printed = capsys.readouterr()
    return stop.value.code, printed.out, printed.err


@pytest.fixture
def nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "survey_machine", lambda: NOTHING)


@for_each("survey", [NOTHING, BUSY], ids=["nothing", "busy"])
def test_the_file_is_valid_and_has_what_was_seen(survey: MachineSurvey) -> None:
    text = configuration_text(survey)
    data = tomllib.loads(text)
    config = build(data)
    assert [target.url for target in config.targets] == [one.url for one in survey.engines.targets]
    assert (config.slo.ttft_p99_seconds, config.slo.itl_p99_seconds) == (2.0, 0.2)
    assert config.agent.listen == "127.0.0.1:9477"


def test_gpus_and_what_cannot_be_scraped_are_comments() -> None:
    text = configuration_text(BUSY)
    assert "# GPUs: 2 x NVIDIA H200, driver 570.1." in text
    assert "# vllm (pid 43) has no port?[31m [[target]]" in text
    assert "does not listen yet" in text


@pytest.mark.usefixtures("nothing_here")
def test_init_writes_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "kvitals.toml"
    code, out, err = run(capsys, "init", "--out", str(path))
    assert (code, err) == (0, "")
    assert "no engine found on this machine." in " ".join(out.split())
    assert f"  kvitals config check {path}\n  kvitals run --config {path}\n" in out
    assert path.read_text() == configuration_text(NOTHING)
    code, _, err = run(capsys, "config", "init", "--out", str(path))
    assert (code, err.strip()) == (2, f"kvitals: {path} exists; choose another --out, or replace it with --force")
    assert run(capsys, "init", "--out", str(path), "--force")[0] == 0
    assert run(capsys, "init", "--out", "-")[1] == configuration_text(NOTHING)
    assert run(capsys, "init", "--out", str(tmp_path / "no" / "file"))[0] == 2


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        ("[slo]\nttft_p99_second = 2\n", 2, "unknown key 'ttft_p99_second'; did you mean 'ttft_p99_seconds'?"),
        ("[slo\n", 2, "is not valid"),
        ("[slo]\nttft_p99_seconds = 1.5\n", 0, "TTFT p99 1.5 s, ITL p99 200 ms"),
        ('[[mute]]\nrule = "KVC99"\nreason = "x"\n', 1, "✗ "),
    ],
)
def test_the_file_alone(text: str, code: int, part: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "kvitals.toml"
    path.write_text(text)
    ended, out, err = run(capsys, "config", "check", str(path), "--offline")
    assert ended == code
    assert part in out + err


@pytest.mark.parametrize(
    "lines",
    [
        (f"wrong_{n} = 1" for n in range(12_000)),
        (f"[wrong_{n}]" for n in range(12_000)),
        (f"[[target]]\nurl = '{n} {n}'" for n in range(3_000)),
        (f'[[mute]]\nrule = "KVX{n}"\nreason = "x"' for n in range(3_000)),
        (f"{'k' * 900_000}{n} = 1" for n in range(1)),
    ],
    ids=["keys", "tables", "targets", "mutes", "a long key"],
)
def test_of_thousands_of_problems_the_first_are_listed(
    lines: Iterator[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """12,000 wrong keys printed 2.5 MB."""
    path = tmp_path / "kvitals.toml"
    path.write_text("\n".join(lines))
    ended, out, err = run(capsys, "config", "check", str(path), "--offline")
    assert ended in (1, 2)
    assert len(out + err) < 20_000
    assert len((out + err).splitlines()) < 200


def test_a_file_that_is_not_there_names_the_command_that_writes_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, err = run(capsys, "config", "check", str(tmp_path / "k.toml"))
    assert (code, err.strip().endswith("writes one")) == (2, True)


@pytest.fixture
def engine() -> Iterator[int]:
    """The port of a recorded engine."""
    port = free_port()
    loop = asyncio.new_event_loop()
    task = loop.create_task(serve(HEAVY_TENANT, port, Console(quiet=True)))

    def turn() -> None:
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=turn)
    thread.start()
    deadline = time.monotonic() + 60
    while not _listens(port):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield port
    loop.call_soon_threadsafe(task.cancel)
    thread.join()
    loop.close()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@for_each("columns", ["60", "80", "120"])
def test_targets_are_what_they_are_or_unreachable(
    columns: str, engine: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.chdir(tmp_path)
    dead = free_port()
    Path("k.toml").write_text(
        f'[[target]]\nurl = "http://127.0.0.1:{engine}"\n[[target]]\nurl = "http://127.0.0.1:{dead}"\n'
    )
    code, out, _ = run(capsys, "config", "check", "k.toml", "--for", "1s")
    assert code == 3
    assert f"✓ 127.0.0.1:{engine}/0  vllm 0.32, model tiny" in out
    assert f"✗ http://127.0.0.1:{dead}: Nothing listens there." in " ".join(out.split())
    assert "1 of 2 targets are unreachable" in out
    assert max(map(len, out.splitlines())) <= int(columns)
    Path("k.toml").write_text(f'[[target]]\nurl = "http://127.0.0.1:{engine}"\n')
    code, out, _ = run(capsys, "config", "check", "k.toml", "--for", "1s")
    assert code == 0
    assert out.splitlines()[-1] == "Every target answers."


@pytest.mark.parametrize(
    ("text", "files", "says"),
    [
        ('[agent]\ntargets_file = "t.json"\n', {"t.json": "["}, "t.json: Expecting value: line 1 column 2"),
        ('[agent]\ntargets_file = "t.txt"\n', {"t.txt": "http://a:1\nhttp://b:x\n"}, "t.txt: line 2: 'http://b:x'"),
        ('[agent]\ntargets_file = "absent.txt"\n', {}, "absent.txt: cannot be read: No such file"),
        (
            '[[request_log]]\npath = "/x.log"\nmapping = "map.yaml"\n',
            {"map.yaml": "a: 1\n"},
            "[[request_log]] map: ",
        ),
        ('[tap]\ntoken_file = "t"\n', {"t": ""}, "kvitals.toml: [tap].token_file: "),
        ("[agent]\nlisten = ':4318'\n[otlp]\n", {}, "[agent].listen and [otlp].http listen at the same address"),
    ],
)
def test_offline_a_broken_file_that_the_configuration_names_is_a_problem(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, files: dict[str, str], says: str
) -> None:
    path = tmp_path / "kvitals.toml"
    path.write_text(text)
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    code, out, _ = run(capsys, "config", "check", str(path), "--offline")
    assert code == 1
    assert says in " ".join(out.split())


def test_targets_that_fail_alike_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """1,500 dead targets took 110 s of CPU time and had a line each."""
    dead = free_port()
    (tmp_path / "t.txt").write_text("".join(f"http://127.0.1.{n}:{dead}\n" for n in range(1, 201)))
    path = tmp_path / "kvitals.toml"
    path.write_text('[agent]\ntargets_file = "t.txt"\n')
    code, out, _ = run(capsys, "config", "check", str(path))
    assert code == 3
    words = " ".join(out.split())
    assert f"✗ http://127.0.1.1:{dead}, http://127.0.1.2:{dead}, " in words
    assert f"http://127.0.1.5:{dead} and 195 more targets: Nothing listens there." in words
    assert "flags not read" not in words
    assert "200 of 200 targets are unreachable or not readable." in words
