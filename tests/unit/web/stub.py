"""An agent's API with an answer that the test sets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kvitals.rules.finding import Triage, encode


@dataclass
class Stub:
    """What the API says next. Change it while it runs. `answers`: to paths that begin so, instead of `body`."""

    body: bytes = b""
    status: int = 200
    asked: list[str] = field(default_factory=list)
    answers: dict[str, bytes] = field(default_factory=dict)
    url: str = ""

    def say(self, document: Triage) -> None:
        self.status, self.body = 200, encode(document)


@contextmanager
def stub_api(document: Triage | None = None) -> Iterator[Stub]:
    """A server on a free port of the loopback interface, for as long as the context lasts."""
    stub = Stub()
    if document is not None:
        stub.say(document)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            stub.asked.append(self.path)
            own = next((body for path, body in stub.answers.items() if self.path.startswith(path)), None)
            body = stub.body if own is None else own
            self.send_response(stub.status if own is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
