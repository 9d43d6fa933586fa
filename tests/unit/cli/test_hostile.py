"""What a user meets when the thing pointed at is not what it should be: one clear message, the right exit code."""

import contextlib
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvitals.app.demo import HEAVY_TENANT
from kvitals.ui.cli.main import main

pytestmark = pytest.mark.usefixtures("shared_verdicts")

BIG = b"kvitals_filler_total 1\n" * 2_200_000  # 50 MB


class Pages(BaseHTTPRequestHandler):
    """/html is a web page, /big a page of 50 MB, /half one that breaks off, everything else is missing."""

    def do_GET(self) -> None:
        body = {"/html": b"<html><body>Grafana</body></html>", "/big": BIG, "/half": b"vllm:num_requests_running"}
        answer = body.get(self.path)
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "text/html" if self.path == "/html" else "text/plain")
        self.send_header("Content-Length", str(len(answer or b"") + (100 if self.path == "/half" else 0)))
        self.end_headers()
        with contextlib.suppress(OSError):  # the client hangs up, as it should on a page that is too large
            self.wfile.write(answer or b"")
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}"
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    out, err = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, out, err


def reason(document: str) -> str:
    telemetry = json.loads(document)["telemetry"]
    assert [f["code"] for f in telemetry] == ["TEL01"]
    return str(telemetry[0]["conclusion"]).partition("(")[2].partition(")")[0]


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/big", "too large"), ("/half", "truncated"), ("/gone", "http error")],
)
def test_a_page_that_cannot_be_read_is_a_target_down_with_a_reason(
    path: str, expected: str, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "triage", server + path, "--json", "--for", "1s")
    assert (code, reason(out)) == (1, expected)


def test_a_page_of_something_else_is_no_engine_to_restart(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It was a finding of severity page, with the lever to restart the engine: for a mistyped URL."""
    code, out, err = run(capsys, "triage", server + "/html", "--for", "1s")
    assert (code, out) == (3, "")
    assert "no target has an engine's metrics page" in err and "This is not a metrics page" in err


def test_a_page_that_is_too_large_is_no_reason_to_restart(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "triage", server + "/big", "--for", "1s")
    assert code == 1 and "Restart" not in out


def test_a_dead_port_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "triage", "http://127.0.0.1:9", "--for", "1s")
    assert (code, out) == (3, "")
    assert "no target can be reached" in err
    assert "Nothing listens there" in err


def test_one_bad_target_does_not_hide_the_others(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "triage", server + "/gone", "http://127.0.0.1:9", "--json", "--for", "1s")
    assert code == 1
    down = {f["entity"]["title"] for f in json.loads(out)["telemetry"]}
    assert down == {server.removeprefix("http://"), "127.0.0.1:9"}


def test_no_url_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "triage", "ht tp://x y")
    assert code == 2
    assert "is not the URL of a server" in err


def test_a_file_that_is_no_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.kvcap"
    path.write_bytes(b"PK\x03\x04" + bytes(200))
    code, _, err = run(capsys, "triage", str(path))
    assert code == 2
    assert "is not a kvitals recording" in err


def test_a_capture_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "triage", str(tmp_path / "none.kvcap"))
    assert code == 2
    assert "cannot read" in err


def test_a_capture_that_was_cut_off_is_judged_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cut.kvcap"
    shutil.copy(HEAVY_TENANT, path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 2 // 3)
    code, out, _ = run(capsys, "triage", str(path), "--json")
    assert code in (1, 3)
    assert json.loads(out)["coverage"]["rules"] > 20
    assert "is cut off" in json.loads(out)["coverage"]["warnings"][0]


def test_a_broken_rule_is_named_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "codes").mkdir()
    (tmp_path / "codes" / "XXX01-broken.yaml").write_text("code: XXX01\nname: broken\nwhen: 'rate('\n")
    code, out, err = run(capsys, "triage", str(HEAVY_TENANT), "--json", "--rules", str(tmp_path))
    assert code == 1
    assert json.loads(out)["causes"]
    assert "left out:" in err
    assert "XXX01-broken.yaml:1: " in err.replace("\n", "")


def test_a_wrong_objective(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "triage", str(HEAVY_TENANT), "--slo", "tps=3")
    assert code == 2
    assert "ttft=TIME" in err


def test_a_moment_outside_of_the_recording(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "triage", str(HEAVY_TENANT), "--at", "2001-01-01T00:00:00Z")
    assert code == 2
    assert "has no data before the requested time" in err


@pytest.mark.parametrize("start", ["+9999s", "+119.9s"])
def test_a_window_that_begins_where_a_recording_ends(capsys: pytest.CaptureFixture[str], start: str) -> None:
    code, _, err = run(capsys, "triage", str(HEAVY_TENANT), f"--from={start}")
    assert code == 2
    assert "has no window there" in err


def test_a_window_that_begins_before_a_recording_is_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "triage", str(HEAVY_TENANT), "--from", "2001-01-01", "--json")
    assert json.loads(out)["window"]["seconds"] == pytest.approx(120.0, abs=2.0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("triage", str(HEAVY_TENANT), "--at", "nan"), "is not a time; write +75s"),
        (("triage", str(HEAVY_TENANT), "--at=1e30"), "is not a time"),
        (("triage", str(HEAVY_TENANT), "--at=+5s", "--to=+9s"), "--at or --to, not both"),
        (("triage", "--to", "yesterday"), "--to=-2h"),
        (("replay", str(HEAVY_TENANT), "--serve", "--port", "99999"), "write a port from 1 to 65535"),
        (("run", "--listen", "somewhere"), "--listen must be HOST:PORT"),
        (("run", "--web-port", "0"), "write a port from 1 to 65535"),
        (("tap", "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:99999"), "--listen must be HOST:PORT"),
    ],
)
def test_moments_and_ports_that_can_not_be(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    code, _, err = run(capsys, *words)
    assert code == 2
    assert says in err


def test_nothing_is_left_of_a_recording_that_could_not_listen(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "new.kvcap"
    code, _, err = run(capsys, "record", "http://127.0.0.1:1", "--out", str(out), "--listen", "nobody")
    assert (code, out.exists()) == (2, False)
    assert "--listen must be HOST:PORT" in err


def test_a_question_that_is_no_selector_names_its_option(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "history", "export", "--dir", str(tmp_path), "--match", "a{")
    assert code == 2
    assert "--match a{: " in err


def test_documents_that_can_not_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    code, _, err = run(capsys, "rules", "site", "--out", str(tmp_path / "taken"))
    assert code == 2
    assert "choose another --out" in err
