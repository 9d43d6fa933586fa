"""The page's process: the code that it runs, the callers that it refuses, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from kvitals.ui.web import commands
from kvitals.ui.web.callers import refuse_strangers
from tests.support.processes import free_port

ROOT = Path(__file__).parents[3]
RECORDING = ROOT / "tests" / "captures" / "requests" / "stages.kvcap"
PRODUCT = ("agent", "app", "config", "dashboards", "diagnoser", "kvcache", "rules", "series", "ui")
START_SECONDS = 240.0
KVITALS = (sys.executable, "-P", "-m", "kvitals.ui.cli.main")
PLANTED = ("nt", "html", "streamlit", "kvitals")
TRACE = "executed"
OWN_NAME = "kvitals.internal"
"""In `hosts` of [agent]."""


class PageOfFolder(NamedTuple):
    """A page that was started in a folder with planted modules."""

    port: int
    folder: Path


def plant(folder: Path) -> None:
    """Modules that write a file when something imports them, and then fail."""
    for name in PLANTED:
        code = f"open({str(folder / TRACE)!r}, 'a').write({name!r})\nraise ImportError({name!r})\n"
        (folder / f"{name}.py").write_text(code, encoding="utf-8")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageOfFolder]:
    """A page of a small recording, from `kvitals web` in a folder with planted modules."""
    folder, port = tmp_path_factory.mktemp("planted"), free_port()
    plant(folder)
    (folder / "kvitals.toml").write_text(f'[agent]\nhosts = ["{OWN_NAME}"]\n', encoding="utf-8")
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [*KVITALS, "web", str(RECORDING), f"--port={port}"],
            env=environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    try:
        asyncio.run(wait_until_served(port, process))
        yield PageOfFolder(port, folder)
    finally:
        process.terminate()
        process.wait()


async def wait_until_served(port: int, process: subprocess.Popen[bytes]) -> None:
    url = f"http://127.0.0.1:{port}/_stcore/health"
    deadline = time.monotonic() + START_SECONDS
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)
    raise AssertionError(
        f"no page at {url} within {START_SECONDS:.0f} s (exit status of its process: {process.poll()})"
    )


def test_the_page_runs_no_code_of_the_current_directory(page: PageOfFolder) -> None:
    assert not (page.folder / TRACE).exists(), (page.folder / "output").read_text(encoding="utf-8")
    assert asyncio.run(status(page.port)) == 200


async def status(port: int, **headers: str) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/", headers=headers) as answer,
    ):
        return answer.status


def test_commands_of_the_page_run_no_code_of_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert commands.run(["--version"]).out
    assert not (tmp_path / TRACE).exists()


def test_every_python_that_the_product_starts_keeps_to_the_safe_path() -> None:
    """`-m` puts the current directory first on the path, unless `-P` precedes it."""
    starts = re.compile(r'sys\.executable,\s*("[^"]*")')
    first_options = [
        (str(file.relative_to(ROOT)), match[1])
        for folder in PRODUCT
        for file in (ROOT / folder).rglob("*.py")
        for match in starts.finditer(file.read_text(encoding="utf-8"))
    ]
    assert first_options
    assert {option for _, option in first_options} == {'"-P"'}, first_options


FOLLOWED = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
"""What a browser sends for a link on another site that a person follows."""


@pytest.mark.parametrize(
    ("host", "headers", "expected"),
    [
        ("127.0.0.1:{port}", {}, 200),
        ("localhost:{port}", {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 200),
        ("127.0.0.1:{port}", {"Origin": "http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"}, 200),
        (OWN_NAME, {"Origin": f"https://{OWN_NAME}"}, 200),  # a proxy in front adds TLS
        ("evil.com:{port}", {}, 403),
        ("evil.com:{port}", {"Origin": "http://evil.com:{port}", "Sec-Fetch-Site": "same-origin"}, 403),
        ("127.0.0.1:{port}", {"Origin": "http://evil.com"}, 403),
        ("127.0.0.1:{port}", {"Origin": "null"}, 403),
        ("127.0.0.1:{port}", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("127.0.0.1:{port}", {"Sec-Fetch-Site": "same-site"}, 403),
        ("127.0.0.1:{port}", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
        ("127.0.0.1:{port}", {**FOLLOWED, "Sec-Fetch-Dest": "iframe"}, 403),
        ("127.0.0.1:{port}", {**FOLLOWED, "Origin": "https://chat.example"}, 403),
    ],
)
async def test_the_page_answers_only_its_own_names_and_its_own_site(
    page: PageOfFolder, host: str, headers: dict[str, str], expected: int
) -> None:
    sent = {"Host": host, **headers}
    sent = {name: value.format(port=page.port) for name, value in sent.items()}
    assert await status(page.port, **sent) == expected
    assert await status_of_stream(page.port, sent) == {200: 101}.get(expected, expected)


async def test_a_link_on_another_site_opens_the_page_and_no_socket(page: PageOfFolder) -> None:
    sent = {"Host": f"127.0.0.1:{page.port}", **FOLLOWED}
    assert await status(page.port, **sent) == 200
    assert await status_of_stream(page.port, sent) == 403


async def status_of_stream(port: int, headers: dict[str, str]) -> int:
    """The status of the answer to a WebSocket's handshake."""
    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{port}/_stcore/stream"
        try:
            async with session.ws_connect(url, headers=headers, protocols=("streamlit",)):
                return 101
        except aiohttp.WSServerHandshakeError as error:
            return error.status


async def test_a_page_for_other_machines_answers_under_any_name() -> None:
    """Its viewers need a password, and its name is what their network calls it."""

    async def served(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def send(message: Any) -> None:
        pass

    reached: list[str] = []
    app = refuse_strangers(served, None)
    await app({"type": "http", "method": "GET", "path": "/a", "headers": [(b"host", b"node7.example")]}, None, send)
    await app(
        {
            "type": "http",
            "method": "GET",
            "path": "/b",
            "headers": [(b"host", b"node7.example"), (b"origin", b"http://b.example")],
        },
        None,
        send,
    )
    assert reached == ["/a"]


@pytest.mark.system
def test_the_page_ends_with_an_agent_that_is_killed(tmp_path: Path) -> None:
    page_port, port = free_port(), free_port()
    with (tmp_path / "output").open("wb") as output:
        agent = subprocess.Popen(
            [*KVITALS, "run", "--demo", f"--listen=127.0.0.1:{port}", f"--web-port={page_port}"],
            env=environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
        )
    try:
        asyncio.run(wait_until_served(page_port, agent))
        (page_pid,) = children_of(agent.pid)
    finally:
        agent.send_signal(signal.SIGKILL)
        agent.wait()
    try:
        assert ends(page_pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(page_pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text(encoding="utf-8").split()]


def ends(pid: int) -> bool:
    """Whether the process is gone or a zombie within a minute."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.2)
    return False
