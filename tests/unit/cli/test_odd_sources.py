"""Sources that are not what was meant: each has a sentence with what it is and what to give."""

from __future__ import annotations

import errno
import io
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvitals.app.demo import FOLDER, HEAVY_TENANT
from kvitals.rules.finding import encode
from kvitals.ui.cli import rules
from kvitals.ui.cli.main import main
from tests.support.recordings import judge, setup

pytestmark = pytest.mark.usefixtures("shared_verdicts")

NOTHING = "no-such-host-or-file.invalid"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert isinstance(stop.value.code, int)
    return stop.value.code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["triage", NOTHING], 2, f"{NOTHING}: no file and no host has that name"),
        (["check", NOTHING], 2, f"{NOTHING}: no file and no host has that name"),
        (
            ["review", str(HEAVY_TENANT), "--out", "x"],
            2,
            "is not a history; for a recording use kvitals triage or knee",
        ),
        (["size", str(HEAVY_TENANT)], 2, "its model tiny is not in the catalogue; give --model NAME"),
        (["size", "--model-config", "/no/such", "--peak", "1"], 2, "/no/such: cannot be read: No such file"),
        (["trace", "x", "http://127.0.0.1:1"], 3, "no agent answers at http://127.0.0.1:1: connection refused"),
        (["knee", "http://127.0.0.1:1"], 3, "cannot be reached (Connection refused): is it running"),
    ],
)
def test_what_is_not_what_was_meant(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, out, err = run(capsys, *arguments)
    assert (ended, out) == (code, "")
    assert message in err and len(err.splitlines()) == 1


def test_recordings_that_hold_nothing_say_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.kvcap"
    path.write_bytes(b"")
    assert "x.kvcap is empty" in run(capsys, "triage", str(path))[2]
    path.write_bytes(HEAVY_TENANT.read_bytes()[:20000])
    assert "x.kvcap has no record that can be read: the recording is cut off" in run(capsys, "triage", str(path))[2]


def test_a_moment_after_the_end_is_said_to_be_none(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "triage", str(HEAVY_TENANT), "--at=+9999s", "--json")
    assert code == 1
    assert "s: kvitals evaluates its end" in err


def test_two_sides_alike_have_no_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert "No signal differs" in run(capsys, "compare", str(HEAVY_TENANT), str(HEAVY_TENANT))[1]


def test_what_may_not_be_read_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def locked(_: object) -> None:
        raise PermissionError(13, "Permission denied", "/locked/rules")

    monkeypatch.setattr(rules, "load", locked)
    code, _, err = run(capsys, "rules", "list")
    assert (code, err) == (2, "kvitals: /locked/rules: permission denied; run as a user who may read it\n")


def test_a_terminal_without_the_letters_gets_others(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    with pytest.raises(SystemExit) as stop:
        main(["triage", str(FOLDER / "caching_off.kvcap"), "--slo", "ttft=100ms"])
    sys.stdout.flush()
    assert stop.value.code == 1
    assert b"--enable-prefix-caching (now off)" in written.getvalue()
    assert b" - window 60 s" in written.getvalue() and b"?" not in written.getvalue()


def test_a_disk_that_is_full_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(rules, "load", full)
    code, _, err = run(capsys, "rules", "list")
    assert (code, err) == (2, "kvitals: the answer cannot be written: No space left on device\n")


def test_objectives_that_an_agent_does_not_judge_by_are_not_silently_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = encode(judge(FOLDER / "healthy.kvcap", setup()).document)

    class Agent(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(document)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Agent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        code, out, err = run(capsys, "triage", url, "--slo", "ttft=1s")
        server.shutdown()
    assert (code, err) == (0, f"{url} is an agent: it uses its own objectives and rules\n")
    assert "✓ No trouble found" in out


def test_a_message_that_cannot_be_shown_does_not_change_the_exit_code() -> None:
    """1 means findings, which a script acts on."""
    with Path("/dev/full").open("wb") as full:
        for words in (["triage", "none.kvcap"], ["no-such-command"], ["triage", "--no-such-option"]):
            ended = subprocess.run([sys.executable, "-m", "kvitals.ui.cli.main", *words], stderr=full, check=False)
            assert ended.returncode == 2, words


def test_an_export_for_which_there_is_no_room_leaves_no_cut_file(tmp_path: Path) -> None:
    limited = f"ulimit -f 4; exec {sys.executable} -m kvitals.ui.cli.main export boards alerts --out {tmp_path}/x"
    ended = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and "None" not in ended.stderr
    assert re.match(rf"kvitals: cannot write to {tmp_path}/x/\S+: File too large", ended.stderr.replace("\n", " "))
    assert all(len(path.read_bytes()) < 4096 for path in (tmp_path / "x").rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "words",
    [
        ("triage", "http://127.0.0.1:1/?token=SECRET"),
        ("triage", "http://user:SECRET@127.0.0.1:1"),
        ("triage", "http://[::1/?token=SECRET"),
        ("triage", "http://a b/#SECRET"),
        ("compare", "http://127.0.0.1:1?SECRET", "x"),
        ("triage", "--prometheus", "http://127.0.0.1:1/?token=SECRET"),
        ("triage", "--prometheus", "http://user:SECRET@127.0.0.1:1/?token=SECRET"),
        ("triage", "--prometheus", "ftp://user:SECRET@127.0.0.1:1/?token=SECRET"),
        ("lint", "--prometheus", "http://127.0.0.1:1/?token=SECRET", "dashboards/generated/boards"),
    ],
)
def test_a_secret_in_a_url_is_not_repeated(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    code, out, err = run(capsys, *words)
    assert code in (2, 3) and "SECRET" not in out + err


def test_a_directory_that_has_no_rules_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run(capsys, "triage", str(HEAVY_TENANT), "--rules", str(tmp_path))
    assert f"left out: {tmp_path}: no directory of rules" in " ".join(err.split())
