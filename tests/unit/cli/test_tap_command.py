"""The command `kvitals tap`: what it is told, what it refuses, and that it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from kvitals.app.errors import UsageError
from kvitals.config import Config, build
from kvitals.ui.cli.main import parser
from kvitals.ui.cli.tap import _settings
from tests.support.processes import free_port


def settings(*arguments: str) -> object:
    return _settings(parser("tap").parse_args(["tap", "--upstream", "127.0.0.1:8000", *arguments]), Config())


def test_what_it_does_by_itself() -> None:
    told = settings()
    assert told.upstream == "http://127.0.0.1:8000"  # type: ignore[attr-defined]
    assert told.listen == ("127.0.0.1", 8100) and told.admin == ("127.0.0.1", 9478)  # type: ignore[attr-defined]
    assert told.agent == "http://127.0.0.1:9477"  # type: ignore[attr-defined]
    assert told.place.engine == "127.0.0.1:8000"  # type: ignore[attr-defined]
    assert not told.wanted.session_id and not told.wanted.keep_traceparent  # type: ignore[attr-defined]


def test_before_a_router_no_engine_is_named() -> None:
    assert settings("--router").place.engine == ""  # type: ignore[attr-defined]
    assert settings("--no-agent").agent == ""  # type: ignore[attr-defined]
    assert settings("--session-header", "X-A", "--session-header", "x-b").wanted.session_headers == ("x-a", "x-b")  # type: ignore[attr-defined]


def test_the_configuration_counts_where_the_options_say_nothing() -> None:
    config = build(
        {
            "tap": {
                "upstream": "gpu-7:8000",
                "listen": "127.0.0.1:8200",
                "session_headers": ["X-Conversation"],
                "session_id": True,
                "max_connections": 7,
                "drain": "2m",
            }
        }
    )
    told = _settings(parser("tap").parse_args(["tap"]), config)
    assert (told.upstream, told.listen, told.place.engine) == ("http://gpu-7:8000", ("127.0.0.1", 8200), "gpu-7:8000")
    assert told.wanted.session_headers == ("x-conversation",) and told.wanted.session_id
    assert (told.max_connections, told.drain, told.agent) == (7, 120.0, "http://127.0.0.1:9477")
    told = _settings(parser("tap").parse_args(["tap", "--upstream=a:1", "--drain=1s", "--session-header=x-b"]), config)
    assert (told.upstream, told.drain, told.wanted.session_headers) == ("http://a:1", 1.0, ("x-b",))
    with pytest.raises(UsageError, match="--upstream URL, or upstream under"):
        _settings(parser("tap").parse_args(["tap"]), Config())


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--upstream", "ftp://x"], "--upstream"),
        (["--upstream", "http://x:8000/v1"], "has a path"),
        (["--upstream", "http://u:p@x"], "password"),
        (["--agent", "http://a:b@x"], "password"),
        (["--listen", "8100"], "--listen"),
        (["--admin", "x"], "--admin"),
        (["--router", "--engine", "a"], "--router"),
        (["--engine", "a\nb"], "--engine"),
        (["--max-connections", "0"], "--max-connections"),
        (["--drain", "soon"], "--drain"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        settings(*arguments)


def test_it_runs_says_502_without_an_engine_and_stops(tmp_path: Path) -> None:
    listen, admin, nobody = free_port(), free_port(), free_port()
    command = [
        sys.executable,
        "-m",
        "kvitals.ui.cli.main",
        "tap",
        f"--listen=127.0.0.1:{listen}",
        f"--admin=127.0.0.1:{admin}",
    ]
    command += [f"--upstream=http://127.0.0.1:{nobody}", "--no-agent"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "COLUMNS": "400"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stderr is not None
        assert f"http://127.0.0.1:{listen} -> http://127.0.0.1:{nobody}" in process.stderr.readline()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{listen}/v1/models", timeout=10)
        assert refused.value.code == 502 and b"is the engine up?" in refused.value.read()
        page = urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=10).read()
        assert b'kvitals_tap_upstream_failures_total{reason="connect"} 1' in page
        second = subprocess.run(command, stderr=subprocess.PIPE, env=environment, text=True, timeout=30, check=False)
        assert second.returncode == 2 and "--listen" in second.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
