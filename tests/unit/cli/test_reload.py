"""A running agent and its configuration: a process of its own, real pages over HTTP, files that change under it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.processes import free_port

PAGE = (Path(__file__).parents[2] / "fixtures" / "exposition" / "vllm-0.32-loaded.prom").read_bytes()
MODEL = "tiny"
PATIENCE_SECONDS = 60.0


@dataclass
class Agent:
    """A running `kvitals run`."""

    process: asyncio.subprocess.Process
    api: str
    config: Path
    log: Path

    async def get(self, path: str, **query: str) -> Any:
        async with aiohttp.ClientSession() as session, session.get(f"{self.api}{path}", params=query) as answer:
            return json.loads(await answer.read())

    async def query(self, expr: str) -> list[tuple[dict[str, str], float]]:
        found = (await self.get("/api/v1/query", query=expr))["data"]["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    async def engines(self) -> set[str]:
        return {labels["engine"] for labels, _ in await self.query("kvitals_target_up")}

    async def objective(self) -> dict[tuple[str, str], float]:
        """TTFT objectives by engine and class."""
        found = await self.query('kvitals_slo_seconds{slo="ttft_p99"}')
        return {(labels["engine"], labels.get("class", "")): value for labels, value in found}

    def said(self) -> str:
        return " ".join(self.log.read_text().split())

    def write(self, text: str) -> None:
        """As a careful editor does: beside it, then renamed."""
        part = self.config.with_suffix(".part")
        part.write_text(text)
        part.replace(self.config)


async def until(holds: Callable[[], Awaitable[bool]], agent: Agent) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if await holds():
                return
        except (aiohttp.ClientError, KeyError):
            pass
        assert agent.process.returncode is None, agent.said()
        assert time.monotonic() < end, agent.said()
        await asyncio.sleep(0.1)


@asynccontextmanager
async def engine() -> AsyncIterator[str]:
    """A server of a recorded page; its URL."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=PAGE, headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.router.add_get("/metrics", page)
    async with TestServer(app) as server:
        yield str(server.make_url("/")).rstrip("/")


@asynccontextmanager
async def running(folder: Path, text: str, **env: str) -> AsyncIterator[Agent]:
    port = free_port()
    config, log = folder / "kvitals.toml", folder / "log"
    config.write_text(text)
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kvitals.ui.cli.main", "run", "--no-web", "--listen", f"127.0.0.1:{port}"),
            *("--config", str(config)),
            env={**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), **env},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    agent = Agent(process, f"http://127.0.0.1:{port}", config, log)
    try:
        await until(lambda: ready(agent), agent)
        yield agent
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE_SECONDS) == 0, agent.said()


async def ready(agent: Agent) -> bool:
    return bool(await agent.query("kvitals_config_reload_success"))


AGENT = '[agent]\ninterval = "0.5s"\n[labels]\nnode = "n1"\n'


async def test_a_good_change_takes_effect_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    async with engine() as one, engine() as two:
        first = f'{AGENT}[[target]]\nurl = "{one}"\nname = "one"\n'
        async with running(tmp_path, first) as agent:
            assert await agent.engines() == {"one"}
            assert (await agent.objective())["one", ""] == 2.0
            ((_, loaded),) = await agent.query("kvitals_config_loaded_timestamp_seconds")

            agent.write(
                first
                + f'[[target]]\nurl = "{two}"\nname = "two"\nslo = {{ttft_p99_seconds = 7}}\n'
                + "[[objective]]\nttft_p99_seconds = 5\n[[objective]]\nclass = 'gold'\nttft_p99_seconds = 1\n"
                + "[[mute]]\nrule = 'TEL10'\nreason = 'known'\n"
            )
            expected = {("one", ""): 5.0, ("two", ""): 7.0, ("one", "gold"): 1.0, ("two", "gold"): 1.0}

            async def taken() -> bool:
                return await agent.objective() == expected

            await until(taken, agent)  # without a signal: the file is looked at
            assert await agent.query("kvitals_config_reload_success") == [
                ({"__name__": "kvitals_config_reload_success", "node": "n1"}, 1.0)
            ]
            ((_, later),) = await agent.query("kvitals_config_loaded_timestamp_seconds")
            assert later > loaded

            async def judged_by() -> bool:
                objectives = await agent.query("kvitals:slo_ttft_seconds")
                return {(labels["engine"], value) for labels, value in objectives} == {("one", 5.0), ("two", 7.0)}

            await until(judged_by, agent)  # signals are evaluated in the next cycle

            good = agent.config.read_text()
            agent.write(f"{good}[agent]\n")
            agent.process.send_signal(signal.SIGHUP)

            async def refused() -> bool:
                return [value for _, value in await agent.query("kvitals_config_reload_success")] == [0.0]

            await until(refused, agent)
            assert "configuration refused, the previous one stays in force" in agent.said()
            assert await agent.objective() == expected
            assert (await agent.get("/api/v1/status/runtimeinfo"))["data"]["reloadConfigSuccess"] is False

            agent.write(f'{AGENT}[[target]]\nurl = "{two}"\nname = "two"\n')

            async def without_one() -> bool:
                return await agent.engines() == {"two"} and not await refused()

            await until(without_one, agent)
            assert f"{one}: no longer named, forgotten" in agent.said()


@pytest.mark.system
async def test_what_needs_a_restart_is_said_and_what_can_not_be_watched_or_is_gone_is_refused(tmp_path: Path) -> None:
    async with engine() as one, running(tmp_path, f'{AGENT}[[target]]\nurl = "{one}"\n') as agent:
        agent.write(f'[agent]\ninterval = "0.5s"\nwindow = "5m"\nlisten = ":1"\n[[target]]\nurl = "{one}"\n')
        agent.process.send_signal(signal.SIGHUP)
        words = "[agent] listen, [agent] window, [labels] node: takes effect after a restart"

        async def said() -> bool:
            return words in agent.said()

        await until(said, agent)
        engines = await agent.engines()
        agent.write(f"{agent.config.read_text()}[[target]]\nurl = 'http://127.0.0.1:9'\nbearer_file = 'none'\n")

        async def refused() -> bool:
            return "bearer_file" in agent.said()

        await until(refused, agent)
        assert await agent.engines() == engines
        agent.config.unlink()

        async def gone() -> bool:
            return "cannot be read: No such file" in agent.said()

        await until(gone, agent)

        async def goes_on() -> bool:
            return await agent.query("kvitals_target_up") == [
                ({"__name__": "kvitals_target_up", "engine": f"{one.removeprefix('http://')}/0", "node": "n1"}, 1.0)
            ]

        await until(goes_on, agent)


@pytest.mark.system
async def test_targets_files_and_rules_are_followed(tmp_path: Path) -> None:
    (tmp_path / "sd").mkdir()
    codes = tmp_path / "own" / "codes"
    codes.mkdir(parents=True)
    async with engine() as one, engine() as two:
        text = '[agent]\ninterval = "0.5s"\ntargets_file = "sd/*.json"\nrules = ["own"]\n'
        async with running(tmp_path, text) as agent:
            assert "no targets yet" in agent.said()
            (tmp_path / "sd" / "a.json").write_text(
                json.dumps([{"targets": [one.removeprefix("http://")], "labels": {"pool": "a"}}])
            )

            async def seen(engines: int) -> bool:
                return len(await agent.engines()) == engines

            await until(lambda: seen(1), agent)
            (tmp_path / "sd" / "b.json").write_text(json.dumps([{"targets": [two.removeprefix("http://")]}]))
            await until(lambda: seen(2), agent)
            assert await agent.engines() == {f"{url.removeprefix('http://')}/0" for url in (one, two)}
            (tmp_path / "sd" / "b.json").write_text("[{]")

            async def kept() -> bool:
                return "the agent keeps its 1 earlier targets" in agent.said()

            await until(kept, agent)
            assert await seen(2)

            async def state(expected: str) -> bool:
                found = await agent.query('kvitals_sense_state{sense="targets"}')
                return [labels["state"] for labels, _ in found] == [expected]

            await until(lambda: state("partial"), agent)
            (tmp_path / "sd" / "b.json").unlink()
            agent.process.send_signal(signal.SIGHUP)
            await until(lambda: seen(1), agent)
            await until(lambda: state("ok"), agent)

            rule = (Path(__file__).parents[3] / "rules" / "codes" / "LAT01-ttft-slo-breach.yaml").read_text()
            own = rule.replace("LAT01", "OWN01").replace("ttft-slo-breach", "own-breach")
            (codes / "OWN01-own-breach.yaml").write_text(own)
            agent.process.send_signal(signal.SIGHUP)

            async def rules() -> set[str]:
                groups = (await agent.get("/api/v1/rules"))["data"]["groups"]
                return {rule["labels"]["code"] for group in groups for rule in group["rules"]}

            async def has_own() -> bool:
                return "OWN01" in await rules()

            await until(has_own, agent)
            (codes / "OWN01-own-breach.yaml").write_text(own.replace("when:", "wenn:"))

            async def refused() -> bool:
                return "configuration refused" in agent.said()

            await until(refused, agent)
            assert await has_own()


@pytest.mark.system
async def test_a_rules_file_that_cannot_be_used_is_reported_by_every_reload(tmp_path: Path) -> None:
    """Also one that was there at the start: the configuration is in force, and not complete."""
    (tmp_path / "own" / "codes").mkdir(parents=True)
    fifo, large = tmp_path / "own" / "codes" / "OWN01-a.yaml", tmp_path / "own" / "codes" / "OWN02-b.yaml"
    os.mkfifo(fifo)
    async with engine() as one:
        text = f'{AGENT}[[target]]\nurl = "{one}"\n'.replace("[agent]\n", '[agent]\nrules = ["own"]\n')
        async with running(tmp_path, text) as agent:

            async def success() -> list[float]:
                return [value for _, value in await agent.query("kvitals_config_reload_success")]

            async def incomplete() -> bool:
                return await success() == [0.0]

            await until(incomplete, agent)
            agent.process.send_signal(signal.SIGHUP)

            async def reported() -> bool:
                return f"still left out; correct or remove it: {fifo}: cannot be read: not a regular" in agent.said()

            await until(reported, agent)
            assert await incomplete()
            large.write_bytes(b"# " + b"x" * (300 << 10))

            async def refused() -> bool:
                return f"{large}: cannot be read: larger than 256 KB" in agent.said()

            await until(refused, agent)
            assert await incomplete()
            fifo.unlink()
            large.unlink()

            async def complete() -> bool:
                return await success() == [1.0]

            await until(complete, agent)


async def test_a_file_that_was_not_there_at_the_start_waits(tmp_path: Path) -> None:
    """`kvitals init` in the directory of an agent without a file reconfigured that agent."""
    async with engine() as one:
        port, log = free_port(), tmp_path / "log"
        env = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
        env.pop("KVITALS_CONFIG", None)
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "kvitals.ui.cli.main", "run", "--no-web", "--listen", f"127.0.0.1:{port}", one),
                cwd=tmp_path,
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        agent = Agent(process, f"http://127.0.0.1:{port}", tmp_path / "kvitals.toml", log)
        try:
            await until(lambda: ready(agent), agent)
            agent.write("[[objective]]\nttft_p99_seconds = 5\n")

            async def announced() -> bool:
                return "is new: it takes effect at a SIGHUP or a restart" in agent.said()

            await until(announced, agent)
            assert set((await agent.objective()).values()) == {2.0}
            process.send_signal(signal.SIGHUP)

            async def taken() -> bool:
                return set((await agent.objective()).values()) == {5.0}

            await until(taken, agent)
        finally:
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), PATIENCE_SECONDS)
