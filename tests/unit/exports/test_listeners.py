"""The table of listeners names every place where kvitals listens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvitals.agent.listeners import LISTENERS, PROCESSES

TREE = Path(__file__).parents[3]
LISTENS = re.compile(
    r"GuardedSite\((?!web)|TCPSite\(|SockSite\(|UnixSite\(|\bcreate_server\(|\bstart_server\(|run_app\("
    r"|add_(?:in)?secure_port\(|socket\.bind\(|HTTPServer\(|\"-m\", \"kvitals\.ui\.web\.launch\""
)
PLACES: dict[tuple[str, str], tuple[str, ...]] = {
    ("app/runtime/api_server.py", "GuardedSite("): ("api", "remote"),
    ("ui/cli/record.py", "GuardedSite("): ("record",),
    ("ui/cli/notify.py", "GuardedSite("): ("notify",),
    ("app/serve_recorded.py", "GuardedSite("): ("replay",),
    ("ui/mcp/mcp_http.py", "GuardedSite("): ("mcp",),
    ("app/page_process.py", '"-m", "kvitals.ui.web.launch"'): ("web",),
    ("agent/collectors/otlp_http.py", "GuardedSite("): ("otlp_http",),
    ("agent/collectors/grpc_front.py", "create_server("): ("otlp_grpc",),
    ("agent/collectors/otlp_grpc.py", "add_insecure_port("): ("otlp_grpc",),
    ("agent/collectors/kv_events_sockets.py", "socket.bind("): ("kv_events",),
    ("agent/tap/server.py", "create_server("): ("tap",),
    ("agent/tap/server.py", "GuardedSite("): ("tap_metrics",),
    ("agent/connections.py", "create_server("): (),  # what GuardedSite does
}


def found() -> set[tuple[str, str]]:
    """Every file of the product and what it listens with."""
    places = set()
    for folder in ("agent", "app", "config", "dashboards", "diagnoser", "kvcache", "rules", "series", "ui"):
        for file in (TREE / folder).rglob("*.py"):
            code = "\n".join(line.partition("#")[0] for line in file.read_text(encoding="utf-8").splitlines())
            if "class GuardedSite(" in code:
                code = code.replace("class GuardedSite(", "").replace("site = GuardedSite(", "")
            places |= {(file.relative_to(TREE).as_posix(), match[0]) for match in LISTENS.finditer(code)}
    return places


def test_every_place_that_listens_has_a_row() -> None:
    assert found() == set(PLACES), "a listener is new or gone: name its row of agent/listeners.py in PLACES"
    assert {name for names in PLACES.values() for name in names} == set(LISTENERS)


def test_every_runner_leaves_bodies_compressed() -> None:
    runners = {
        file.relative_to(TREE).as_posix()
        for folder in ("agent", "app", "config", "dashboards", "diagnoser", "kvcache", "rules", "series", "ui")
        for file in (TREE / folder).rglob("*.py")
        if re.search(r"\b(?:web\.|import )(?:AppRunner|ServerRunner|run_app)\b", file.read_text(encoding="utf-8"))
    }
    assert runners == {"agent/connections.py"}, "use GuardedRunner: aiohttp's own unpacks bodies on the event loop"


def test_every_listener_with_a_limit_belongs_to_a_process() -> None:
    limited = {name for name, row in LISTENERS.items() if row.connections}
    assert {name for names in PROCESSES.values() for name in names} == limited


@pytest.mark.parametrize("name", [n for n, row in LISTENERS.items() if row.connections])
def test_a_row_has_a_bound_for_everything(name: str) -> None:
    row = LISTENERS[name]
    assert min(row.first_byte, row.head, row.body, row.idle, row.max_head or row.max_body) > 0
    assert row.per_peer < row.connections
