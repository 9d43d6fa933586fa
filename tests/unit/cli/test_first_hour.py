"""What a newcomer does wrong in the first hour is answered at once, in words of the command that was run."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvitals.agent.node import Node
from kvitals.app.errors import UsageError
from kvitals.app.sources.recording import Moments
from kvitals.app.sources.recording_reader import span_of
from kvitals.series.recordings import Record
from kvitals.ui.cli.main import main

pytestmark = pytest.mark.usefixtures("shared_verdicts")

ROOT = Path(__file__).parents[3]
TENANTS = ROOT / "tests/captures/requests/tenants.kvcap"
HEALTHY = ROOT / "app/demo/healthy.kvcap"
INTERRUPTED_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts tests in the background ignores it
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "kvitals.ui.cli.triage":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from kvitals.agent.node import Node
from kvitals.series.recordings import Record
from kvitals.ui.cli.main import main
main(["triage", "x.kvcap"])
"""


INTERRUPTED_DEMO = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts tests in the background ignores it
from kvitals.ui.cli import run
def judge(*_):
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass
run.judge_recording = judge
from kvitals.agent.node import Node
from kvitals.series.recordings import Record
from kvitals.ui.cli.main import main
main(["run", "--demo", "--no-web"])
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


@pytest.fixture
def not_found() -> Iterator[tuple[str, list[str]]]:
    """A server that answers 404 to everything, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()


def test_version_is_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert (code, out.split()[0]) == (0, "kvitals")


@pytest.mark.parametrize("words", [("triage", HEALTHY), ("compare", HEALTHY, HEALTHY)])
def test_a_wrong_time_is_refused_for_recordings_too(
    capsys: pytest.CaptureFixture[str], words: tuple[str | Path, ...]
) -> None:
    code, _, err = run(capsys, *map(str, words), "--for", "abc")
    assert code == 2
    assert "`abc` is not a time" in err


def test_cache_refuses_a_wrong_window_of_a_recording(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "cache", str(HEALTHY), "--window", "abc")[0] == 2


@pytest.mark.parametrize("option", ["--watch", "--probe"])
def test_what_works_on_engines_alone_is_refused_for_a_recording(
    capsys: pytest.CaptureFixture[str], option: str
) -> None:
    code, _, err = run(capsys, "triage", str(HEALTHY), option)
    assert code == 2
    assert option in err and "observed now" in err


def test_knee_of_a_part_of_a_recording(capsys: pytest.CaptureFixture[str]) -> None:
    whole, part = (json.loads(run(capsys, "knee", str(HEALTHY), "--json", *more)[1])[0] for more in ([], ["--to=30s"]))
    assert part["start"] == whole["start"]
    assert part["end"] < whole["end"]
    code, _, err = run(capsys, "knee", str(HEALTHY), "--from=9999s")
    assert code == 2 and "in the time of the recording" in err


def test_compare_says_that_a_moment_is_after_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "compare", str(HEALTHY), f"{HEALTHY}@+9999s")
    assert code == 0
    assert "ends at +" in err
    assert "kvitals evaluates its end" in err


def test_trace_without_an_id_lists_the_ids_to_choose_from(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "trace", str(TENANTS))
    assert code == 0
    first = out.splitlines()[1].split()[0]
    code, out, _ = run(capsys, "trace", first, str(TENANTS))
    assert code == 0
    assert out.startswith(first)


def test_a_recording_of_nothing_is_not_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "x.kvcap"
    code, _, err = run(capsys, "record", "http://127.0.0.1:9", "--for", "300ms", "--every", "200ms", "--out", str(out))
    assert code == 3
    assert "no target answered" in err
    assert not out.exists()


@pytest.mark.parametrize("words", [("triage",), ("check", "--json"), ("compare", str(HEALTHY))])
@pytest.mark.parametrize(
    ("url", "why"),
    [("http://127.0.0.1:1", "Nothing listens there"), ("http://engine.invalid:8000", "cannot be resolved")],
)
def test_a_target_that_nobody_reaches_ends_the_command_after_one_scrape(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], url: str, why: str
) -> None:
    reads = []
    read = Node.read

    async def counted(node: Node) -> list[Record]:
        reads.append(node)
        return await read(node)

    monkeypatch.setattr(Node, "read", counted)
    code, out, err = run(capsys, *words, url)
    assert (code, out, len(reads)) == (3, "", 1)
    assert err.startswith("kvitals: no target can be reached\n") and why in err
    assert len(err.splitlines()) == 2


def test_a_port_that_is_taken_is_said_before_a_demo_is_judged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, not_found: tuple[str, list[str]]
) -> None:
    monkeypatch.setattr("kvitals.ui.cli.run.judge_recording", None)
    address = not_found[0].removeprefix("http://")
    code, _, err = run(capsys, "run", "--demo", "--no-web", "--listen", address)
    assert code == 2
    assert "is in use, perhaps by another agent; choose another with --listen HOST:PORT" in err


def test_rules_are_listed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "rules", "list", "--json")
    listed = {one["code"]: one for one in json.loads(out)}
    assert code == 0
    assert listed["KVC01"]["kind"] == "cause" and listed["KVC01"]["title"]


def test_check_judges_the_last_seconds_of_a_recording(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = []

    def judged(_: object, __: object, of: Moments) -> None:
        moments.append(of)
        raise UsageError("enough")

    monkeypatch.setattr("kvitals.ui.cli.check.judge_recording", judged)
    for words in ([], ["--for", "10s"]):
        assert run(capsys, "check", str(HEALTHY), *words)[0] == 2
    assert [one.start for one in moments] == [None, span_of(HEALTHY)[1] - 10]


def test_cache_asks_a_server_that_is_no_engine_once(
    capsys: pytest.CaptureFixture[str], not_found: tuple[str, list[str]]
) -> None:
    url, asked = not_found
    begun = time.monotonic()
    code, _, err = run(capsys, "cache", url, "--window", "10m")
    assert time.monotonic() - begun < 300
    assert code == 3
    assert "404" in err
    assert asked.count("/metrics") == 1


@pytest.mark.parametrize("words", [("knee",), ("audit",), ("review", "--out", "unused")])
def test_a_server_without_the_api_is_neither_agent_nor_prometheus(
    capsys: pytest.CaptureFixture[str], not_found: tuple[str, list[str]], words: tuple[str, ...]
) -> None:
    code, _, err = run(capsys, *words, not_found[0])
    assert code in (2, 3)
    assert "neither a kvitals agent nor a Prometheus (status 404" in err


def test_closed_output_is_no_traceback() -> None:
    command = f"{sys.executable} -m kvitals.ui.cli.main triage {HEALTHY} >&-"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stderr
    assert done.returncode == 2
    assert "the answer cannot be written to standard output: it is closed" in done.stderr


def test_ctrl_c_while_modules_are_imported_is_one_line() -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (130, "kvitals: stopped\n")


def test_ctrl_c_while_a_demo_is_judged_is_one_line_at_once() -> None:
    """Ctrl-C is the normal end of `run`, also before it listens."""
    command = [sys.executable, "-c", INTERRUPTED_DEMO]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "kvitals: stopped\n")
