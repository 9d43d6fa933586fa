"""The one client of the agent's API: it tells apart why there is no answer."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import pytest

from kvitals.app.agent_client import (
    AgentAddressError,
    AgentClient,
    AgentError,
    AgentRefusedError,
    AgentSlowError,
    AgentUnreachableError,
    NotKvitalsError,
    OtherVersionError,
    UnreadableAnswerError,
)
from kvitals.rules.finding import VERSION

BUILD = b'{"status":"success","data":{"version":"2.42.0","revision":"kvitals 0.1.0"}}'
PROMETHEUS = b'{"status":"success","data":{"version":"2.53.0","revision":"4c35b92"}}'
JSON = "application/json"


@contextmanager
def answering(answers: dict[str, tuple[int, bytes]]) -> Iterator[str]:
    """A server with an answer for each path; every other path is a plain 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path.partition("?")[0].removeprefix("/api/v1/"), (404, b"not found"))
            self.send_response(status)
            self.send_header("Content-Type", JSON if body.startswith(b"{") else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


@contextmanager
def silent() -> Iterator[str]:
    """A listener that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(AgentUnreachableError, match=r"connection refused. Start one with `kvitals run`"):
        AgentClient(f"http://127.0.0.1:{port}").findings()


def test_a_slow_agent_is_not_a_missing_one() -> None:
    with silent() as url, pytest.raises(AgentSlowError, match=r"did not answer within 0\.3 s"):
        AgentClient(url, timeout=0.3).cache()


@pytest.mark.parametrize("url", ["nonsense", "ftp://127.0.0.1", "http://127.0.0.1:x", "http://"])
def test_an_address_that_is_not_a_url(url: str) -> None:
    with pytest.raises(AgentAddressError, match="write http://HOST:PORT"):
        AgentClient(url).findings()


@pytest.mark.parametrize("method", ["findings", "cache", "cascades", "accesses", "history"])
def test_an_engine_and_a_prometheus_are_not_agents(method: str) -> None:
    for build in ((404, b"not found"), (200, PROMETHEUS)):
        with answering({"status/buildinfo": build}) as url, pytest.raises(NotKvitalsError):
            getattr(AgentClient(url), method)()


def test_an_agent_that_refuses_says_why() -> None:
    refusal = b'{"status":"error","errorType":"unavailable","error":"no findings yet"}'
    with answering({"findings": (503, refusal)}) as url, pytest.raises(AgentRefusedError) as caught:
        AgentClient(url).findings()
    assert (caught.value.status, caught.value.reason) == (503, "no findings yet")


@pytest.mark.parametrize("status", [401, 403])
def test_an_engine_with_a_key_is_no_agent(status: int) -> None:
    """ "the agent ... refuses this caller; send the token of [remote]" was said of an engine."""
    with answering({"findings": (status, b"no")}) as url, pytest.raises(NotKvitalsError, match=f"HTTP {status}"):
        AgentClient(url).findings()
    refusal = b'{"status":"error","errorType":"unauthorized","error":"send the token"}'
    with answering({"findings": (status, refusal)}) as url, pytest.raises(AgentRefusedError, match="send the token"):
        AgentClient(url).findings()


@pytest.mark.parametrize("method", ["cache", "accesses", "history"])
def test_what_an_agent_does_not_have_is_none(method: str) -> None:
    refusal = b'{"status":"error","errorType":"not_found","error":"no engine publishes KV events"}'
    path = {"cache": "cache", "accesses": "accesses", "history": "history"}[method]
    with answering({"status/buildinfo": (200, BUILD), path: (404, refusal)}) as url:
        assert getattr(AgentClient(url), method)() is None


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("cache", "cache", b'{"status":"success","data":[1]}'),
        ("findings", "findings", b'{"version":"7.0","findings":[]}'),
        ("cascades", "cascades", b"<html>"),
        ("accesses", "accesses", b"\x00\x01"),
    ],
)
def test_an_agent_of_another_version(method: str, path: str, body: bytes) -> None:
    other = BUILD.replace(b"0.1.0", b"9.9.9")
    with answering({"status/buildinfo": (200, other), path: (200, body)}) as url:
        with pytest.raises(OtherVersionError, match="the same kvitals version on both sides"):
            getattr(AgentClient(url), method)()
        assert AgentClient(url).version() == "9.9.9"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("cache", "cache", b'{"status":"success","data":[1]}'),
        ("findings", "findings", f'{{"version":"{VERSION}","findings":[]}}'.encode()),
    ],
)
def test_an_answer_of_this_version_that_cannot_be_read(method: str, path: str, body: bytes) -> None:
    own = BUILD.replace(b"0.1.0", version("kvitals").encode())
    says = r"runs this version of kvitals .* cannot be read"
    with (
        answering({"status/buildinfo": (200, own), path: (200, body)}) as url,
        pytest.raises(UnreadableAnswerError, match=says),
    ):
        getattr(AgentClient(url), method)()


def test_an_answer_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvitals.app.agent_client.MAX_BYTES", 1 << 20)
    with answering({"findings": (200, b" " * (2 << 20))}) as url, pytest.raises(AgentError, match="larger than 1 MB"):
        AgentClient(url).findings()


def test_a_redirect_is_not_followed() -> None:
    with answering({"findings": (302, b"")}) as url, pytest.raises(NotKvitalsError):
        AgentClient(url).findings()


def test_an_answer_that_drips_ends_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                for _ in range(100):
                    connection.sendall(b" ")
                    time.sleep(0.1)

        threading.Thread(target=drip, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(AgentSlowError):
            AgentClient(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.5).findings()
        assert time.monotonic() - began < 8.0


@pytest.mark.parametrize(
    "answer",
    [
        b"Content-Length: 70000\r\n\r\n" + b"x" * 40_000,
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabcd\r\n",
    ],
)
def test_an_answer_that_is_cut_is_no_answer(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_one() -> None:
            with listener.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\n" + answer)

        threading.Thread(target=answer_one, daemon=True).start()
        with pytest.raises(AgentUnreachableError, match="no agent answers"):
            AgentClient(f"http://127.0.0.1:{listener.getsockname()[1]}").findings()
