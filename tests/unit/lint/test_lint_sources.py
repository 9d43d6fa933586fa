"""Where boards and rules come from: files that are odd, a Grafana that is, and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from kvitals.dashboards.lint import grafana_server, reading
from kvitals.dashboards.lint.grafana_server import GrafanaAccess, read_grafana
from kvitals.dashboards.lint.pages import read_page
from kvitals.dashboards.lint.reading import ReadingError, read_path
from kvitals.dashboards.lint.variables import OpenedQuery
from kvitals.ui.cli.main import main

INPUTS = Path(__file__).parent / "inputs"
BOARD = {"title": "b", "panels": [{"title": "p", "targets": [{"expr": "rate(vllm:num_requests_waiting[5m])"}]}]}


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["lint", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b"{", "no JSON"),
        ("a.json", b"[" * 200_000, "no JSON"),
        ("a.json", b'{"a":\n' + b"9" * 5000 + b"}", r"integer of more than 4,300 digits.*at line 2"),
        ("a.yaml", b"a:\n  b: " + b"9" * 5000, "invalid int.*line 2"),
        ("a.yaml", b"a:\n  b: !!bool x", "invalid bool.*line 2"),
        ("a.json", b'{"a": 1}', "neither a Grafana board"),
        ("a.yaml", b"a: [", "not YAML"),
        ("a.yaml", b"groups: {{ .Values.x }}", "helm template"),
        ("a.yaml", b"a: &a [1]\nb: [" + b"*a, " * 500 + b"]\n", "aliases"),
        ("a.yaml", b"\xff\xfe\x00", "no text"),
        ("a.yaml", b"[" * 100_000, "no"),
    ],
)
def test_what_can_not_be_read_is_said(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ReadingError, match=said):
        read_path(tmp_path / name)


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_BYTES", 100)
    (tmp_path / "a.json").write_text(json.dumps(BOARD | {"padding": "x" * 200}))
    with pytest.raises(ReadingError, match="larger than"):
        read_path(tmp_path / "a.json")


@pytest.mark.parametrize(
    "board",
    [
        {"panels": [None, 3, {"targets": 7}, {"targets": [None, {"expr": 5}]}, {"panels": "x"}], "templating": []},
        {"panels": [{"title": 5, "fieldConfig": [], "targets": [{"expr": "x" * 100_000}]}]},
        {"panels": [{"targets": [{"expr": "(" * 5000}]}, {"targets": [{"expr": 'x{a="'}]}]},
        {"rows": [{"panels": None}], "annotations": {"list": [{"expr": "up", "datasource": 5}]}},
    ],
)
def test_odd_boards_end_nothing(board: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(json.dumps(board))
    assert run(str(tmp_path / "a.json")) in (0, 3)


def test_a_folder_leaves_out_what_is_none(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "board.json").write_text(json.dumps(BOARD))
    (tmp_path / "package.json").write_text("{}")
    documents, left_out = read_path(tmp_path)
    assert [one.name for one in documents] == ["sub/board.json (b)"] and left_out == []


@contextmanager
def grafana(answers: dict[str, tuple[int, Any]], token: str = "") -> Iterator[str]:
    """A stand-in for Grafana's API: path -> status, body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = not token or self.headers.get("Authorization") == f"Bearer {token}"
            status, body = answers.get(self.path.partition("?")[0], (404, {})) if allowed else (401, {})
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:1/")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


API = {
    "/grafana/api/search": (200, [{"uid": "one"}, {"uid": "gone"}, {"uid": "../x"}, {"title": "no uid"}]),
    "/grafana/api/dashboards/uid/one": (200, {"dashboard": BOARD, "meta": {}}),
}


def test_all_boards_of_a_grafana(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    with grafana(API, "abc") as url:
        documents, left_out = read_grafana(GrafanaAccess(f"{url}/grafana/", tmp_path / "token"))
        assert [one.name for one in documents] == [f"{url}/grafana/d/one (b)"]
        assert left_out == [f"{url}/grafana/api/dashboards/uid/gone answers 404"]


def test_one_board_by_its_address() -> None:
    with grafana(API) as url:
        documents, _ = read_grafana(GrafanaAccess(f"{url}/grafana/d/one/some-name?orgId=1"))
        assert len(documents) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((302, {}), "redirects"),
        ((401, {}), "--token-file"),
        ((200, {"not": "a list"}), "like Grafana"),
        ((200, b"<html>"), "no|JSON"),
        ((500, {}), "answers 500"),
    ],
)
def test_a_grafana_that_is_none(answer: tuple[int, Any], said: str) -> None:
    with grafana({"/api/search": answer}) as url, pytest.raises(ReadingError, match=said):
        read_grafana(GrafanaAccess(url))


def test_a_url_that_is_none() -> None:
    with pytest.raises(ReadingError, match="is not a URL"):
        read_grafana(GrafanaAccess("http://[::1"))


def test_a_page_whose_bounds_are_no_numbers(tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.write_text('# TYPE x histogram\nx_bucket{le="abc"} 1\nx_bucket{le="+Inf"} 1\nx_sum 1\nx_count 1\n')
    with pytest.raises(ReadingError, match="'abc' is not a bucket bound"):
        read_page(page)


def test_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grafana_server, "MAX_BYTES", 1000)
    with grafana({"/api/search": (200, b"[" + b" " * 5000)}) as url, pytest.raises(ReadingError, match="larger"):
        read_grafana(GrafanaAccess(url))


@pytest.mark.parametrize("url", ["ftp://x", "http://user:pw@h/", "http://h/d/%2e%2e%2f"])
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(ReadingError):
        read_grafana(GrafanaAccess(url))


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(INPUTS / "alerts.yaml")) == 1
    said = capsys.readouterr().out
    assert "alert CacheNearlyFull" in said and "vllm:kv_cache_usage_perc > 0.9\n" in said
    assert "11 errors, 1 warning;" in said and "vllm 0.33" in said


def test_the_command_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(INPUTS / "serving.json"), "--json", "--no-warnings") == 1
    report = json.loads(capsys.readouterr().out)
    assert {one["weight"] for one in report["defects"]} == {"error"} and report["engines"]["vllm"] == "0.33"


def test_the_command_on_sound_ones_and_on_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound = {"panels": [{"title": "p", "targets": [{"expr": "vllm:num_requests_running"}]}]}
    (tmp_path / "a.json").write_text(json.dumps(sound))
    assert run(str(tmp_path / "a.json")) == 0
    assert run(str(tmp_path / "none.json")) == 2
    assert run(str(tmp_path / "a.json"), "--engine", "vlm=1") == 2
    assert "vllm" in capsys.readouterr().err


def test_a_folder_may_hold_files_of_other_kinds(tmp_path: Path) -> None:
    (tmp_path / "board.json").write_text(json.dumps(BOARD))
    (tmp_path / "alertmanager.yaml").write_text("route: {receiver: a}")
    (tmp_path / "broken.json").write_text("{")
    documents, left_out = read_path(tmp_path)
    assert len(documents) == 1
    assert [line.partition(" is ")[2][:7] for line in left_out] == ["no JSON"]


def test_a_query_over_the_engines_own_names_is_read_whole() -> None:
    name = "vllm:" + "a" * 20_000
    assert str(OpenedQuery(f"rate({name}[5m])").expr) == f"rate({name}[5m])"


def test_of_thousands_of_defects_the_first_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = [{"alert": f"A{n}", "expr": "rate(vllm:num_requests_running[5m]) > 0"} for n in range(1000)]
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}))
    assert run(str(tmp_path / "rules.yaml")) == 1
    shown = capsys.readouterr().out
    assert "800 defects more; --json lists all" in shown and shown.count("vllm:num_requests_running") < 1000
