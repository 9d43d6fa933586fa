"""The client of Prometheus' API, against a server that misbehaves in every way that it can be told of."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvitals.diagnoser.sources import prometheus, survey
from kvitals.diagnoser.sources.prometheus import Prometheus, PrometheusAccess, PrometheusQuery, ServerError

VECTOR = {"resultType": "vector", "result": [{"metric": {"engine": "a"}, "value": [1.0, "2.5"]}]}


class Server(ThreadingHTTPServer):
    """Answers every question with `status`, `body` and `headers`, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.body, self.headers = 200, b"", {}
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.answer({"status": "success", "data": VECTOR})

    def answer(self, document: object, status: int = 200) -> None:
        self.status, self.body = status, json.dumps(document).encode()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.server.asked.append((self.path, dict(self.headers), body))
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(access: PrometheusAccess) -> list[prometheus.PrometheusSeries]:
    with Prometheus(access) as client:
        return client.one(PrometheusQuery("up", 1.0))


def refusal(access: PrometheusAccess) -> str:
    with pytest.raises(ServerError) as error:
        ask(access)
    return str(error.value)


def test_a_vector_is_read(server: Server) -> None:
    (found,) = ask(PrometheusAccess(server.url))
    assert found.metric == {"engine": "a"}
    assert found.value == (1.0, "2.5")


@pytest.mark.parametrize(
    ("series", "count"),
    [
        (b'{"metric":{},"value":[1,"1"]}', 500_001),
        (b'{"m\\u0065tric":{},"value":[1,"1"]}', 500_001),  # JSON has many spellings of a name
        (b'{"metric":{%s},"value":[1,"1"]}' % b",".join(b'"%d":""' % i for i in range(1000)), 5_100),
    ],
)
def test_too_many_series_or_labels_are_not_decoded(server: Server, series: bytes, count: int) -> None:
    result = b",".join([series] * count)
    server.body = b'{"status":"success","data":{"resultType":"vector","result":[' + result + b"]}}"
    assert "was not decoded" in refusal(PrometheusAccess(server.url))


def test_the_series_of_a_diagnosis_are_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MAX_SERIES_IN_ALL", 5)
    with Prometheus(PrometheusAccess(server.url)) as client, pytest.raises(ServerError, match="for one diagnosis") as e:
        for _ in range(6):
            client.one(PrometheusQuery("up", 1.0))
    assert not e.value.question


@pytest.mark.parametrize("count", ["-Inf", "+Inf", "1e999", "9" * 5000, "0x1p3", "x", "-1"])
def test_a_number_of_samples_that_is_not_possible_is_an_error(server: Server, count: str) -> None:
    result = [{"metric": {}, "value": [1.0, count]}]
    with Prometheus(PrometheusAccess(server.url)) as client, pytest.raises(ServerError, match=r"impossible|form"):
        server.answer({"status": "success", "data": {"resultType": "vector", "result": result}})
        survey._interval(client, "up", 1000.0, 0.0)


@pytest.mark.parametrize(("count", "first"), [("NaN", 0.0), ("0", 0.0), ("5", 1000.0)])
def test_no_distance_between_samples_is_no_interval(server: Server, count: str, first: float) -> None:
    result = [{"metric": {}, "value": [1.0, count]}]
    with Prometheus(PrometheusAccess(server.url)) as client:
        server.answer({"status": "success", "data": {"resultType": "vector", "result": result}})
        assert survey._interval(client, "up", 1000.0, first) is None


def test_the_path_of_the_url_stands_before_the_api(server: Server) -> None:
    for path in ("/prometheus", "/prometheus/", "/prometheus/api/v1/"):
        ask(PrometheusAccess(server.url + path))
    assert {path for path, _, _ in server.asked} == {"/prometheus/api/v1/query"}


def test_credentials_come_from_files(server: Server, tmp_path: Path) -> None:
    bearer, headers = tmp_path / "bearer", tmp_path / "headers"
    bearer.write_text("s3cret\n")
    headers.write_text("X-Team: serving\n")
    ask(PrometheusAccess(server.url, bearer_file=bearer, headers_file=headers, tenant="blue"))
    sent = server.asked[0][1]
    assert (sent["Authorization"], sent["X-Team"], sent["X-Scope-OrgID"]) == ("Bearer s3cret", "serving", "blue")


def test_a_password_is_sent_as_basic_authorization(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "basic"
    file.write_text("me:pass:word\n")
    ask(PrometheusAccess(server.url, basic_file=file))
    assert server.asked[0][1]["Authorization"] == "Basic bWU6cGFzczp3b3Jk"


def test_a_password_in_the_url_is_refused(server: Server) -> None:
    assert "--prometheus-basic" in refusal(PrometheusAccess(server.url.replace("//", "//me:secret@")))
    assert not server.asked


def test_a_file_that_can_not_be_used_is_named(server: Server, tmp_path: Path) -> None:
    assert "nowhere" in refusal(PrometheusAccess(server.url, bearer_file=tmp_path / "nowhere"))
    empty = tmp_path / "empty"
    empty.write_text("\n")
    assert "empty" in refusal(PrometheusAccess(server.url, basic_file=empty))
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    assert "on one line" in refusal(PrometheusAccess(server.url, bearer_file=lines))
    assert "`Name: value`" in refusal(PrometheusAccess(server.url, headers_file=lines))
    assert "--prometheus-cert" in refusal(PrometheusAccess(server.url, key_file=lines))


def test_what_is_no_url_is_said(server: Server) -> None:
    assert "is not a URL" in refusal(PrometheusAccess("http://[::1"))


def test_a_redirect_is_not_followed(server: Server) -> None:
    server.status, server.headers = 302, {"Location": "http://elsewhere.example/"}
    assert "http://elsewhere.example/" in refusal(PrometheusAccess(server.url))
    assert len(server.asked) == 1


def test_refused_credentials_name_the_options(server: Server) -> None:
    server.answer({}, 401)
    assert "--prometheus-bearer" in refusal(PrometheusAccess(server.url))


def test_another_program_is_told_from_a_prometheus(server: Server) -> None:
    server.body = b"<html>Grafana</html>"
    message = refusal(PrometheusAccess(server.url))
    assert "is neither a kvitals agent nor a Prometheus" in message
    assert "Grafana" in message


def test_an_answer_that_is_too_large_is_not_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MAX_BYTES", 100)
    server.body = b" " * 1_000_000
    assert "MB" in refusal(PrometheusAccess(server.url))


def test_decoding_counts_against_the_timeout(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of 256 MB takes seconds to decode, in which no timeout ran."""
    one = VECTOR["result"][0]
    server.answer({"status": "success", "data": {"resultType": "vector", "result": [one] * 1000}})
    clock = itertools.count(0.0, 10.0)  # seconds: a stretch of series takes ten
    monkeypatch.setattr(prometheus, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert len(ask(PrometheusAccess(server.url, timeout=100.0))) == 1000
    said = refusal(PrometheusAccess(server.url, timeout=30.0))
    assert "took more than 30 s" in said and "--prometheus-timeout" in said


def test_a_query_that_fails_is_that_querys(server: Server) -> None:
    server.answer({"status": "error", "errorType": "execution", "error": "too many samples"}, 422)
    with Prometheus(PrometheusAccess(server.url)) as client:
        answers = client.ask([PrometheusQuery("a", 1.0), PrometheusQuery("b", 1.0)])
    assert [str(answer) for answer in answers] == ["execution: too many samples"] * 2


def test_an_unreachable_server_ends_all_at_once() -> None:
    with (
        Prometheus(PrometheusAccess("http://127.0.0.1:9")) as client,
        pytest.raises(ServerError, match="cannot be reached"),
    ):
        client.ask([PrometheusQuery("up", 1.0)] * 100)
    assert client.asked <= 4


def test_warnings_and_partial_answers_are_kept(server: Server) -> None:
    server.answer({"status": "success", "data": VECTOR, "warnings": ["no store matched"], "isPartial": True})
    with Prometheus(PrometheusAccess(server.url)) as client:
        client.ask([PrometheusQuery("up", 1.0)] * 3)
    assert list(client.warnings) == ["no store matched", "the answer is partial: not every storage node answered"]


@pytest.mark.parametrize(
    "data",
    [
        {"resultType": "matrix", "result": []},
        {"resultType": "vector", "result": [{"metric": {"a": 1}, "value": [1, "2"]}]},
        {"resultType": "vector", "result": {}},
        {"resultType": "streams"},
        [],
    ],
)
def test_an_answer_of_another_shape_is_an_error(server: Server, data: object) -> None:
    server.answer({"status": "success", "data": data})
    assert refusal(PrometheusAccess(server.url))


@pytest.mark.parametrize("url", ["", "localhost:9090", "ftp://host", "http://"])
def test_what_is_no_url_is_refused(url: str) -> None:
    assert "not the URL of a server" in refusal(PrometheusAccess(url))
