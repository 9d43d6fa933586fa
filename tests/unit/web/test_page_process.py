"""The page's process and the code that it runs."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from kvitals.ui.web import commands
from tests.support.processes import free_port

ROOT = Path(__file__).parents[3]
RECORDING = ROOT / "tests" / "captures" / "requests" / "stages.kvcap"
PRODUCT = ("agent", "app", "config", "dashboards", "diagnoser", "kvcache", "rules", "series", "ui")
START_SECONDS = 90.0
KVITALS = (sys.executable, "-P", "-m", "kvitals.ui.cli.main")
PLANTED = ("nt", "html", "streamlit", "kvitals")
TRACE = "executed"


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
