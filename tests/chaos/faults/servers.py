"""The servers beside the agent: a Prometheus that hangs, dies and comes back, an Alertmanager that is away."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from .engines import on_time, up
from .stage import HOST, KVITALS, ROOT, CannotRunError, Program, Stage, Told, free_port

GENERATED = ROOT / "dashboards" / "generated"
TIMEOUT_SECONDS = 3
ENDS_SECONDS = 40.0
"""A command that asks a Prometheus which does not answer ends within this, its own start included."""
RESEND_SECONDS = 5
TOLD_SECONDS = 45.0


async def prometheus(stage: Stage, told: Told) -> None:
    """A Prometheus that holds the agent's series stands still, is killed, and comes back with what it had."""
    ports = {"engine": free_port()}
    await stage.engine(ports["engine"])
    agent = await stage.agent(ports)
    await up(stage, agent, ports)
    port = free_port()
    server = await _prometheus(stage, port, agent.port)
    await asyncio.sleep(20.0)
    status, said, _ = await _triage(stage, port)
    told.expect(
        status in (0, 1, 3) and "1 engines" in said, f"triage with it running ended with {status}: {said[-300:]}"
    )
    server.process.send_signal(signal.SIGSTOP)
    status, said, took = await _triage(stage, port)
    told.expect(status == 3 and "no answer within" in said, f"a Prometheus that hangs: {status}: {said[-300:]}")
    told.expect(took < ENDS_SECONDS, f"triage took {took:.0f} s with a Prometheus that hangs")
    told.said.append(f"it hangs: “{_last(said)}” after {took:.1f} s")
    await server.kill()
    status, said, took = await _triage(stage, port)
    told.expect(status == 3 and "cannot be reached" in said, f"a Prometheus that is away: {status}: {said[-300:]}")
    told.said.append(f"it is away: “{_last(said)}”")
    await _prometheus(stage, port, agent.port)
    await asyncio.sleep(5.0)
    status, said, _ = await _triage(stage, port)
    told.expect(status in (0, 1, 3) and "1 engines" in said, f"triage after it came back: {status}: {said[-300:]}")
    await on_time(agent, told, "engine", 30.0)


async def alertmanager(stage: Stage, told: Told) -> None:
    """An engine dies while the Alertmanager is away, and Prometheus is killed too: somebody is told in the end."""
    ports = {"engine": free_port(), "other": free_port()}
    victim = await stage.engine(ports["engine"])
    await stage.engine(ports["other"], seed=2)
    agent = await stage.agent(ports)
    await up(stage, agent, ports)
    messages: list[tuple[float, dict[str, Any]]] = []
    receiver, receiving = await _receiver(messages)
    port, manager = free_port(), free_port()
    try:
        server = await _prometheus(stage, port, agent.port, manager)
        await asyncio.sleep(5.0)
        await victim.kill()
        fires = await stage.until(lambda: _fires(stage, port), TOLD_SECONDS)
        told.expect(fires is not None, "Prometheus does not fire TEL01 without an Alertmanager")
        await server.kill()
        await _prometheus(stage, port, agent.port, manager)
        again = await stage.until(lambda: _fires(stage, port), TOLD_SECONDS)
        told.expect(again is not None, "TEL01 does not fire again after Prometheus was killed")
        told.expect(not messages, "somebody was told without an Alertmanager")
        back = time.time()
        await _alertmanager(stage, manager, receiving)
        took = await stage.until(lambda: _was_told(messages), TOLD_SECONDS)
        told.expect(took is not None, f"nobody was told within {TOLD_SECONDS:.0f} s of its coming back: {messages}")
        at = next((t for t, one in messages if one["labels"].get("code") == "TEL01"), back)
        told.said.append(
            f"TEL01 fires {(fires or 0):.0f} s after the engine died, {(again or 0):.0f} s after Prometheus was killed;"
            f" told {at - back:.0f} s after the Alertmanager is there"
        )
        await on_time(agent, told, "other", 30.0)
    finally:
        await receiver.cleanup()


async def _prometheus(stage: Stage, port: int, agent: int, manager: int | None = None) -> Program:
    """With the rules that ship; once more on the same port, the same server again."""
    command = shutil.which("prometheus")
    if command is None:
        raise CannotRunError("there is no `prometheus`: install Debian's package prometheus")
    managers = [{"static_configs": [{"targets": [f"{HOST}:{manager}"]}]}] if manager is not None else []
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(GENERATED / "prometheus" / "agents" / name) for name in ("recording.yaml", "alerts.yaml")],
        "alerting": {"alertmanagers": managers},
        "scrape_configs": [
            {"job_name": "kvitals", "honor_labels": True, "static_configs": [{"targets": [f"{HOST}:{agent}"]}]}
        ],
    }
    file = stage.folder / f"prometheus-{port}.json"
    file.write_text(json.dumps(config))
    flags = [f"--config.file={file}", f"--storage.tsdb.path={stage.folder / f'prometheus-{port}'}", "--log.level=warn"]
    flags += [f"--web.listen-address={HOST}:{port}", f"--rules.alert.resend-delay={RESEND_SECONDS}s"]
    return await stage.start("prometheus", [command, *flags], f"http://{HOST}:{port}/-/ready")


async def _alertmanager(stage: Stage, port: int, receiving: int) -> Program:
    """With the configuration that ships, told to whoever receives here."""
    command = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if command is None:
        raise CannotRunError("there is no Alertmanager: install Debian's package prometheus-alertmanager")
    shipped: dict[str, Any] = yaml.safe_load(_read(GENERATED / "alertmanager" / "alertmanager.yaml"))
    for one in shipped["receivers"]:
        for hook in one.get("webhook_configs", ()):
            hook["url"] = f"http://{HOST}:{receiving}/"
    file = stage.folder / "alertmanager.json"
    file.write_text(json.dumps(shipped))
    flags = [f"--config.file={file}", f"--storage.path={stage.folder / 'alertmanager'}", "--cluster.listen-address="]
    flags += [f"--web.listen-address={HOST}:{port}", "--log.level=warn"]
    return await stage.start("alertmanager", [command, *flags], f"http://{HOST}:{port}/-/ready")


async def _receiver(messages: list[tuple[float, dict[str, Any]]]) -> tuple[web.AppRunner, int]:
    """Someone who is told, and the port."""

    async def take(request: web.Request) -> web.Response:
        messages.extend((time.time(), alert) for alert in (await request.json())["alerts"])
        return web.Response()

    app, port = web.Application(), free_port()
    app.router.add_post("/", take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, HOST, port).start()
    return runner, port


async def _fires(stage: Stage, port: int) -> bool:
    asked = {"query": 'ALERTS{code="TEL01",alertstate="firing",engine="engine"}'}
    async with stage.session.get(f"http://{HOST}:{port}/api/v1/query", params=asked) as answer:
        return bool((await answer.json())["data"]["result"])


async def _was_told(messages: list[tuple[float, dict[str, Any]]]) -> bool:
    return any(one["labels"].get("code") == "TEL01" for _, one in messages)


async def _triage(stage: Stage, port: int) -> tuple[int, str, float]:
    asked = [f"--prometheus=http://{HOST}:{port}", f"--prometheus-timeout={TIMEOUT_SECONDS}s"]
    return await stage.run([*KVITALS, "triage", *asked])


def _last(said: str) -> str:
    return " ".join(said.strip().splitlines()[-1:])[:160]


def _read(path: Path) -> str:
    return path.read_text()
