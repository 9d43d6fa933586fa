"""Secrets, prompts, answers, sessions and token ids are put into everything that comes in, and looked for in everything
that goes out: logs, metrics, history, a recording, traces that are sent on, the API's answers, the terminal.

make ship
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import trustme
import zstandard
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kvitals.series.recordings import CaptureReader
from tests.ship.planted_engine import (
    ANSWER,
    BEARER,
    HOST,
    KEY,
    MARK,
    PROMPT,
    SESSION,
    TENANT,
    TOKENS,
    as_bytes,
    as_text,
    kv_events,
)
from tests.support.processes import free_port

ROOT = Path(__file__).parents[2]
LITELLM = ROOT / "tests/fixtures/request_logs/litellm.jsonl"
ZSTD = b"\x28\xb5\x2f\xfd"
PATIENCE = 90.0
SECRETS = {
    name: f"{MARK}-{name}"
    for name in (
        "parts-token",
        "otlp-token",
        "api-token",
        "collector-key",
        "prometheus-login",
        "slack-url",
        "pager-key",
    )
}
JSON = {"Content-Type": "application/json"}
STUB = "from tests.ship.planted_engine import main\nmain()\n"
API = (
    *("findings", "requests?newest=1000", "tail", "cache", "cascades", "accesses", "labels"),
    *("label/__name__/values", "query?query=kvitals_engine_info", "query?query=kvitals_engine_fact"),
)


class Stage:
    """Everything that runs, and all that came out of it by where it was found."""

    def __init__(self, folder: Path) -> None:
        self.inputs, self.home = folder / "inputs", folder / "home"
        self.inputs.mkdir()
        self.home.mkdir()
        names = ("vllm", "sglang", "events", "api", "remote", "grpc", "http", "tap", "admin", "recorder", "record_otlp")
        self.port = {name: free_port() for name in names}
        self.out: dict[str, bytes] = {}
        self.sent: list[tuple[str, bytes]] = []  # what the collector was sent: its Authorization, the body
        self._running: list[subprocess.Popen[bytes]] = []
        before = {"collector-key": "authorization: ", "slack-url": f"http://{HOST}:1/services/"}
        for name, text in SECRETS.items():
            (self.inputs / name).write_text(before.get(name, "") + text)
        (self.inputs / "target-token").write_text(BEARER)
        authority = trustme.CA()
        authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(self.inputs / "tls.pem")
        authority.cert_pem.write_to_path(self.inputs / "ca.pem")

    def start(self, name: str, *command: str, **env: str) -> subprocess.Popen[bytes]:
        with (self.home / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=self.env(**env))
        self._running.append(process)
        return process

    def env(self, **more: str) -> dict[str, str]:
        own = {"HOME": str(self.home), "XDG_STATE_HOME": str(self.home / "state"), "TMPDIR": str(self.home)}
        return {"PATH": os.defpath, "NO_COLOR": "1", "LANG": "C.UTF-8", **own, **more}

    def kvitals(self, *arguments: str) -> bytes:
        """What a command prints."""
        command = [sys.executable, "-m", "kvitals.ui.cli.main", *arguments]
        done = subprocess.run(command, capture_output=True, timeout=120, cwd=ROOT, env=self.env())
        return done.stdout + done.stderr

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        process.wait(30)

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()

    def configuration(self, name: str, api: int, more: str) -> Path:
        file = self.inputs / f"{name}.toml"
        file.write_text(f"""
[agent]
listen = "{HOST}:{api}"
interval = "1s"
discover = false
parts_token_file = "parts-token"
[tenants]
top = 5
[[target]]
url = "http://{HOST}:{self.port["vllm"]}"
name = "chat"
bearer_file = "target-token"
[[target]]
url = "http://{HOST}:{self.port["sglang"]}"
name = "other"
[[request_log]]
path = "requests.jsonl"
format = "litellm"
[prometheus]
url = "https://{HOST}:1"
basic_file = "prometheus-login"
{more}""")
        return file


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """After all of it was played once."""
    one = Stage(tmp_path_factory.mktemp("planted"))
    try:
        with _collector(one) as collector:
            _play(one, collector)
        yield one
    finally:
        one.end()


def _play(stage: Stage, collector: int) -> None:
    _start_engines(stage)
    log = stage.inputs / "requests.jsonl"
    log.touch()
    agent = stage.start("agent", *_command("run", "--no-web", f"--config={_agent_configuration(stage, collector)}"))
    capture = stage.home / "all.kvcap"
    config = stage.configuration(
        "recorder",
        stage.port["recorder"],
        f"""
[otlp]
http = "{HOST}:{stage.port["record_otlp"]}"
grpc = ""
""",
    )
    listen = f"--listen={HOST}:{stage.port['recorder']}"
    recorder = stage.start("recorder", *_command("record", f"--out={capture}", f"--config={config}", listen))
    tap = stage.start("tap", *_command("tap", *_tap_options(stage)))
    for port in (stage.port["api"], stage.port["recorder"], stage.port["admin"]):
        _until(lambda port=port: _get(f"http://{HOST}:{port}/metrics"))  # type: ignore[misc]
    _until(lambda: b"kvitals_target_up{" in _get(f"http://{HOST}:{stage.port['api']}/metrics"))
    _send(stage, log)
    _until_arrived(stage)
    stage.out["what the API told"] = b"\n".join(_get(f"http://{HOST}:{stage.port['api']}/api/v1/{at}") for at in API)
    for name, port in (("agent", "api"), ("tap", "admin"), ("recorder", "recorder")):
        stage.out[f"the {name}'s metrics"] = _get(f"http://{HOST}:{stage.port[port]}/metrics")
    stage.out["triage in the terminal"] = stage.kvitals("triage", f"http://{HOST}:{stage.port['api']}", "--verbose")
    stage.out["check in the terminal"] = stage.kvitals("check", f"--config={stage.inputs / 'recorder.toml'}")
    _until(lambda: stage.sent)
    for process in (tap, recorder, agent):
        stage.stop(process)
    folder = next(stage.home.glob("state/**/history"))
    stage.out["history, exported"] = stage.kvitals("history", "export", f"--dir={folder}", "--from=-1h")
    stage.out["history's events"] = stage.kvitals("history", "list", f"--dir={folder}", "--events", "--json")
    stage.out["traces that were sent on"] = b"".join(body for _, body in stage.sent)


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kvitals.ui.cli.main", *arguments]


def _start_engines(stage: Stage) -> None:
    place = stage.inputs / "engine" / "vllm" / "entrypoints" / "openai"
    place.mkdir(parents=True)
    (place / "api_server.py").write_text(STUB)
    events = json.dumps({"enable_kv_cache_events": True, "endpoint": f"tcp://{HOST}:{stage.port['events']}"})
    flags = [f"--port={stage.port['vllm']}", f"--sglang-port={stage.port['sglang']}", "--max-num-seqs=77"]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model=tiny", f"--api-key={KEY}", *flags]
    path = os.pathsep.join([str(stage.inputs / "engine"), str(ROOT)])
    stage.start("engine", *command, "--kv-events-config", events, PYTHONPATH=path)


def _agent_configuration(stage: Stage, collector: int) -> Path:
    return stage.configuration(
        "agent",
        stage.port["api"],
        f"""
[remote]
listen = "{HOST}:{stage.port["remote"]}"
cert_file = "tls.pem"
key_file = "tls.pem"
token_file = "api-token"
[otlp]
http = "{HOST}:{stage.port["http"]}"
grpc = "{HOST}:{stage.port["grpc"]}"
token_file = "otlp-token"
[otlp_out]
endpoint = "http://{HOST}:{collector}"
headers_file = "collector-key"
sample = 1.0
[notify]
[[notify.slack]]
url_file = "slack-url"
[[notify.pagerduty]]
key_file = "pager-key"
url = "http://{HOST}:1"
""",
    )


def _tap_options(stage: Stage) -> list[str]:
    at = {name: f"{HOST}:{port}" for name, port in stage.port.items()}
    addresses = [f"--listen={at['tap']}", f"--admin={at['admin']}", f"--upstream=http://{at['vllm']}"]
    return [*addresses, f"--agent=http://{at['api']}", f"--token-file={stage.inputs / 'parts-token'}", "--session-id"]


def _send(stage: Stage, log: Path) -> None:
    """Requests through the tap, spans, a log, and callers who are refused."""
    text = LITELLM.read_text().replace("PROMPT-SECRET", PROMPT).replace("ANSWER-SECRET", ANSWER)
    text = text.replace("88dc28d0f030c55ed4ab77ed8faf098196cb1c05df778539800c9f1243fe6b4b", f"{MARK}-hash-of-a-key")
    with log.open("a") as file:
        file.write(text.replace('"acme"', f'"{TENANT}-log"'))
    body = json.dumps({"model": "tiny", "stream": True, "messages": [{"role": "user", "content": PROMPT}]})
    headers = {"Authorization": f"Bearer {KEY}", "X-Tenant-Id": f"{TENANT}-tap", "X-Session-Id": SESSION}
    for path in ("/v1/chat/completions", f"/v1/chat/completions?api_key={KEY}"):
        for _ in range(3):
            _post(f"http://{HOST}:{stage.port['tap']}{path}", body.encode(), headers)
    _post(f"http://{HOST}:{stage.port['tap']}/v1/{MARK}-no-such-path", body.encode(), headers)
    proto = {"Content-Type": "application/x-protobuf"}
    token = {"Authorization": f"Bearer {SECRETS['otlp-token']}"}
    _post(f"http://{HOST}:{stage.port['http']}/v1/traces", _spans(), proto | token)
    _post(f"http://{HOST}:{stage.port['record_otlp']}/v1/traces", _spans(), proto)
    alert = {
        "status": "firing",
        "labels": {"alertname": "KVC01", "code": "KVC01", "engine": "chat", "severity": "page"},
    }
    message = {"version": "4", "status": "firing", "receiver": "kvitals", "groupKey": "one", "alerts": [alert]}
    accepted = _post(f"http://{HOST}:{stage.port['api']}/api/v1/notify", json.dumps(message).encode(), JSON)
    assert accepted in (200, 202), accepted
    wrong = {"Authorization": f"Bearer {MARK}-wrong-token"}
    assert _post(f"http://{HOST}:{stage.port['http']}/v1/traces", _spans(), proto | wrong) == 401
    assert _post(f"http://{HOST}:{stage.port['http']}/v1/traces", f"{MARK} is no span".encode(), proto | token) == 400
    for path in (f"query?query={MARK}%7B", f"{MARK}", f"requests?tenant={MARK}"):
        _get(f"http://{HOST}:{stage.port['api']}/api/v1/{path}")


def _spans() -> bytes:
    made = ExportTraceServiceRequest()
    of_resource = made.resource_spans.add()
    of_resource.resource.attributes.add(key="service.name").value.string_value = "gateway"
    scope = of_resource.scope_spans.add()
    now = time.time_ns()
    for _ in range(3):
        span = scope.spans.add(
            trace_id=os.urandom(16), span_id=os.urandom(8), name=f"chat {MARK}",
            start_time_unix_nano=now - 1_200_000_000, end_time_unix_nano=now,
        )  # fmt: skip
        texts = {
            **{"gen_ai.operation.name": "chat", "gen_ai.request.model": "tiny", "tenant.id": f"{TENANT}-otlp"},
            **{"gen_ai.input.messages": PROMPT, "gen_ai.prompt": PROMPT, "gen_ai.completion": ANSWER},
            **{"http.request.header.authorization": f"Bearer {KEY}", "session.id": SESSION},
            **{"url.full": f"http://u:{KEY}@engine/v1?api_key={KEY}", "exception.message": PROMPT},
        }
        for key, text in texts.items():
            span.attributes.add(key=key).value.string_value = text
        span.events.add(time_unix_nano=now, name=PROMPT).attributes.add(key="p").value.string_value = PROMPT
        span.status.message = PROMPT
    return bytes(made.SerializeToString())


def _missing(stage: Stage) -> dict[str, float]:
    """What the agent has not counted enough of yet: without something of each kind the search would say nothing."""
    page = _get(f"http://{HOST}:{stage.port['api']}/metrics").decode()

    def total(name: str, *labels: str) -> float:
        found = (re.match(r"(\w+)\{(.*)\} (\S+)", line) for line in page.splitlines())
        mine = (one for one in found if one and one[1] == name and all(label in one[2] for label in labels))
        return sum(float(one[3]) for one in mine)

    parts = {
        f"parts of {one}": total("kvitals_parts_total", f'source="{one}"') - 3 for one in ("otlp", "tap", "litellm")
    }
    slots = total("kvitals_engine_fact", 'fact="slots"', 'source="command line"') - 77
    blocks = total("kvitals_cache_stored_blocks_total") - 10
    counted = {"slots": slots, "blocks": blocks, "requests": total("kvitals_tenant_requests_total") - 9}
    counted |= parts | {"targets": total("kvitals_target_up") - 2}
    return {name: more for name, more in counted.items() if more < 0}


def _get(url: str) -> bytes:
    """The answer, whatever its status."""
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        return bytes(error.read())
    except OSError:
        return b""


def _post(url: str, body: bytes, headers: dict[str, str]) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=20) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _until(true: Callable[[], Any]) -> None:
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < PATIENCE, "it did not come to it"
        time.sleep(0.25)


def _until_arrived(stage: Stage) -> None:
    began = time.monotonic()
    while missing := _missing(stage):
        assert time.monotonic() - began < PATIENCE, f"too few: {missing}"
        time.sleep(0.5)


@contextmanager
def _collector(stage: Stage) -> Iterator[int]:
    """What takes traces that the agent sends; yields its port."""

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = __import__("gzip").decompress(body)
            stage.sent.append((self.headers.get("Authorization", ""), body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((HOST, 0), Taking)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file with what it holds, captures and databases unpacked too."""
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(file.relative_to(folder))
        yield name, str(file.name).encode() + file.read_bytes()
        if file.suffix == ".kvcap":
            with CaptureReader.open(file) as records:
                yield f"{name}, unpacked", b"\n".join(record.payload for record in records)
        elif file.read_bytes()[:15] == b"SQLite format 3":
            yield f"{name}, unpacked", b"\n".join(_cells(file))


def _cells(file: Path) -> Iterator[bytes]:
    """What a database's cells hold, decompressed where they are compressed."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in database.execute(f'SELECT * FROM "{table}"'):
                for cell in row:
                    data = cell if isinstance(cell, bytes) else str(cell).encode()
                    yield data
                    at = data.find(ZSTD)
                    if at >= 0:
                        yield zstandard.ZstdDecompressor().decompressobj().decompress(data[at:])


def planted(data: bytes, *, tenants: bool) -> list[str]:
    """Which planted things are in some bytes, each with what is around it."""
    wanted = [MARK.encode(), *(text.encode() for text in as_text()), *as_bytes()]
    wanted += [TENANT.encode()] if tenants else []
    places = ((one, data.lower().find(one) if one.isalpha() else data.find(one)) for one in wanted)
    return [repr(data[max(at - 60, 0) : at + 60]) for _, at in places if at >= 0]


def test_the_search_finds_what_is_there(stage: Stage, tmp_path: Path) -> None:
    found = [name for name, data in _files(stage.inputs) if planted(data, tenants=True)]
    assert {"requests.jsonl", "target-token", *SECRETS} <= set(found)
    assert len(planted(kv_events(1), tenants=True)) >= len(TOKENS)
    packed = tmp_path / "some.sqlite"
    with closing(sqlite3.connect(packed)) as database:
        database.execute("CREATE TABLE t (data BLOB)")
        database.execute("INSERT INTO t VALUES (?)", (zstandard.compress(PROMPT.encode() * 50),))
        database.commit()
    assert any(planted(data, tenants=True) for name, data in _files(tmp_path) if "unpacked" in name)


def test_all_of_it_came_in_and_was_of_use(stage: Stage) -> None:
    requests = json.loads(stage.out["what the API told"].split(b"\n")[1])
    assert requests, "the API knows no request"
    assert {authorization for authorization, _ in stage.sent} == {SECRETS["collector-key"]}
    assert len(stage.out["history, exported"].splitlines()) > 1000
    with CaptureReader.open(stage.home / "all.kvcap") as records:
        kept = [(record.sense, record.payload) for record in records]
    assert {"scrape", "facts", "kv_events", "parts"} <= {sense for sense, _ in kept}
    parts = b"".join(payload for sense, payload in kept if sense == "parts")
    assert b"otlp" in parts and b"litellm" in parts


def test_names_of_tenants_are_told_on_loopback_alone(stage: Stage) -> None:
    assert TENANT.encode() in stage.out["what the API told"]


def test_nothing_of_it_is_told(stage: Stage) -> None:
    for name, data in stage.out.items():
        resolved = name == "what the API told" or "terminal" in name  # whoever is on this machine may know tenants
        assert not planted(data, tenants=not resolved), name


def test_nothing_of_it_is_kept(stage: Stage) -> None:
    names = []
    for name, data in _files(stage.home):
        names.append(name)
        assert not planted(data, tenants=True), name
    assert {"agent.log", "tap.log", "recorder.log", "all.kvcap, unpacked"} <= set(names)
    assert any(name.startswith("state") and "unpacked" in name for name in names)
    assert any("/notify/" in name for name in names), "no message waits for a target that does not answer"


@pytest.mark.parametrize(
    "url", [f"http://u:{KEY}@{HOST}:1", f"http://u:{KEY}@{HOST}:1/?x=1", f"http://u:{KEY}@:99999", f"http://u:{KEY} @h"]
)
def test_a_password_in_a_url_is_refused_and_not_repeated(stage: Stage, url: str, tmp_path: Path) -> None:
    config = tmp_path / "kvitals.toml"
    config.write_text(f'[[target]]\nurl = "{url}"\n')
    for said in (stage.kvitals("triage", url), stage.kvitals("check", f"--config={config}")):
        assert said and b"Traceback" not in said
        assert not planted(said, tenants=True)
