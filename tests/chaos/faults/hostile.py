"""Targets, queries, rule directories and recordings of somebody who means harm."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import time
from pathlib import Path

import aiohttp

from kvitals.series.recordings import CaptureWriter, Record
from tests.unit.agent.test_hostile_targets import HOSTILE, serving

from .engines import is_state, on_time, up
from .stage import HOST, KVITALS, ROOT, Agent, Stage, Told, free_port

LARGE = ("endless", "endless, chunked", "gzip bomb")
"""Targets whose pages go on beyond any limit: the smallest limit refuses them."""

LOOKS_SECONDS = 15.0
PEAK_MB = 300.0
ANSWER_SECONDS = 15.0
"""A query is answered or refused within this: its own limit is 10 s."""
ENDS_SECONDS = 30.0
SLOW_CLIENTS = 200

BOMBS = {
    "a regular expression that runs forever": 'up{a=~"(x+)+y"}',
    "one that runs for minutes": 'kvitals_target_up{engine=~".*.*.*.*.*.*.*.*x"}',
    "choices that double": 'kvitals_target_up{engine=~"' + "a?" * 40 + "a" * 40 + '"}',
    "an optional character 40 times": 'up{a=~"(.?){40}x"} or {__name__=~"(.?){40}x"}',
    "a lazy one 40 times": '{__name__=~"(.??){40}x"}',
    "as many optional as required": '{__name__=~"(a?){30}a{30}"}',
    "a named group 30 times": '{__name__=~"(?P<b>.?){30}x"}',
    "a pattern in label_replace": 'label_replace({__name__=~".+"}, "b", "$1", "engine", "(.?){40}x")',
    "nested repeats": '{__name__=~"(((.{1,100}){1,100}){1,100})"}',
    "nested deep": "(" * 5000 + "1" + ")" * 5000,
    "long": "1" + " + 1" * 20_000,
    "subqueries in subqueries": "max_over_time(" * 5 + "kvitals_target_up" + "[1h:1s])" * 5,
    "a year by the millisecond": "max_over_time(kvitals_target_up[1y:1ms])",
    "everything joined with everything": '{__name__=~".+"} * on () group_left () {__name__=~".+"}',
    "everything, over and over": 'sum by (engine) ({__name__=~".+"}) or ' * 90 + '{__name__=~".+"}',
    "numbers without end": "9" * 10_000,
    "no text": "\x00\ud7ff\u202e",
}
PATHS = (
    "/../../../../etc/passwd", "/api/v1/../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd",
    "/api/v1/label/..%2f..%2fetc%2fpasswd/values", "/api/v1/requests/../../../etc/passwd", "/static/../../etc/passwd",
    "/api/v1/label/%00/values", "/" + "a" * 7000,
)  # fmt: skip


async def targets(stage: Stage, told: Told) -> None:
    """An engine beside two dozen targets that trickle, flood, redirect, lie about lengths or answer with bombs."""
    async with contextlib.AsyncExitStack() as stack:
        urls = {name: await stack.enter_async_context(serving(writes)) for name, (writes, _) in HOSTILE.items()}
        names = {name: f"hostile-{number}" for number, name in enumerate(urls)}
        good = free_port()
        await stage.engine(good)
        agent = await stage.agent({"good": good, **{names[name]: url for name, url in urls.items()}})
        came = await stage.until(lambda: agent.query('kvitals_target_up{engine="good"} == 1'), 15.0)
        told.expect(came is not None, "the good engine is not read")
        await asyncio.sleep(LOOKS_SECONDS)
        for name, (_, reasons) in HOSTILE.items():
            if name in LARGE:
                reasons = {*reasons, "memory_share"}  # with so many targets a share is smaller than the limit of a page
            known = [await is_state(agent, names[name], reason) for reason in reasons]
            states = await agent.query(f'kvitals_target_state{{engine="{names[name]}"}} == 1')
            told.expect(any(known), f"{name}: not told as {' or '.join(reasons)} but as {states}")
        await on_time(agent, told, "good", LOOKS_SECONDS)
        peak = agent.program.megabytes("VmHWM")
        told.expect(peak < PEAK_MB, f"the agent took {peak:.0f} MB")
        told.said.append(f"{len(urls)} hostile targets, each with its reason; {peak:.0f} MB at the peak")


async def queries(stage: Stage, told: Told) -> None:
    """PromQL bombs, names of other hosts, paths out of the tree, headers without end and slow clients at the API."""
    ports = {"engine": free_port()}
    await stage.engine(ports["engine"])
    agent = await stage.agent(ports)
    await up(stage, agent, ports)
    await asyncio.sleep(5.0)  # some looks to compare with
    refused = 0
    for name, query in BOMBS.items():
        status, took = await _asked(stage, agent, query)
        told.expect(took < ANSWER_SECONDS, f"{name}: answered after {took:.1f} s")
        told.expect(status in (200, 400, 422, 503), f"{name}: {status}")
        refused += status != 200
    await on_time(agent, told, "engine", 10.0)
    for path in PATHS:
        status, body = await asyncio.to_thread(_raw, agent.port, path, {})
        told.expect(status >= 400 and b"root:" not in body, f"{path[:60]} is answered with {status}")
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example"):
        status, _ = await asyncio.to_thread(_raw, agent.port, "/api/v1/findings", {"Host": host})
        told.expect(status in (400, 403, 421), f"as {host} it is answered with {status}")
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        status, _ = await asyncio.to_thread(_raw, agent.port, "/api/v1/query?query=1", headers)
        told.expect(status == 403, f"with {headers} it is answered with {status}")
    status, _ = await asyncio.to_thread(_raw, agent.port, "/metrics", {f"X-{n}": "a" * 4000 for n in range(500)})
    told.expect(status >= 400 or status == 0, f"2 MB of headers are answered with {status}")
    clients = [await asyncio.open_connection(HOST, agent.port) for _ in range(SLOW_CLIENTS)]
    for _, writer in clients:
        writer.write(b"GET /metrics HTTP/1.1\r\nX")
    await asyncio.sleep(3.0)
    began = time.monotonic()
    told.expect(bool(await agent.query("kvitals_target_up")), "no answer beside slow clients")
    took = time.monotonic() - began
    told.expect(took < 2.0, f"an answer beside slow clients took {took:.1f} s")
    for _, writer in clients:
        writer.close()
    await on_time(agent, told, "engine", 15.0)
    peak = agent.program.megabytes("VmHWM")
    told.expect(peak < PEAK_MB, f"the agent took {peak:.0f} MB")
    told.said.append(
        f"{refused} of {len(BOMBS)} bombs refused, the others answered; {len(PATHS)} paths and other hosts refused;"
        f" {SLOW_CLIENTS} slow clients; {peak:.0f} MB at the peak"
    )


async def files(stage: Stage, told: Told) -> None:
    """A directory of rules and recordings that are traps: commands end with what is wrong, and an agent goes on."""
    bad, ports = stage.folder / "rules", {"engine": free_port()}
    _trap(bad)
    await stage.engine(ports["engine"])
    agent = await stage.agent(ports, rules=bad)
    await up(stage, agent, ports)
    await asyncio.sleep(5.0)
    await on_time(agent, told, "engine", 5.0)
    peak = agent.program.megabytes("VmHWM")
    told.expect(peak < PEAK_MB, f"the agent took {peak:.0f} MB")
    status, said, took = await stage.run([*KVITALS, "triage", str(ROOT / "app/demo/healthy.kvcap"), f"--rules={bad}"])
    told.expect(status in (0, 1, 3), f"triage with those rules ended with {status}: {said[-300:]}")
    flat = " ".join(said.split())
    for word in ("pipe.yaml", "zero.yaml", "nowhere.yaml", "aliases", "nested deeper", "UTF-8", "not a regular file"):
        told.expect(word in flat, f"what is said of those rules names no {word}: {said[:600]}")
    told.expect(len(said) < 50_000, f"{len(said)} characters are said of those rules")
    told.said.append(f"{len(list(bad.rglob('*')))} rule files that are traps: named and left out in {took:.0f} s")
    for name, path in _recordings(stage.folder).items():
        status, said, took = await stage.run([*KVITALS, "triage", str(path)])
        told.expect(status in (0, 1, 2, 3) and "Traceback" not in said, f"{name}: {status}: {said[-300:]}")
        told.expect(took < ENDS_SECONDS, f"{name}: took {took:.0f} s")
    written = [one for one in (Path("/etc/kvitals-chaos"), stage.folder / "escaped") if one.exists()]
    told.expect(not written, f"something was written to {written}")
    told.said.append(f"{len(_recordings(stage.folder))} recordings that are traps: refused or read as far as they go")


async def _asked(stage: Stage, agent: Agent, query: str) -> tuple[int, float]:
    began = time.monotonic()
    try:
        url = f"http://{HOST}:{agent.port}/api/v1/query"
        async with stage.session.post(url, data={"query": query}, timeout=aiohttp.ClientTimeout(30)) as answer:
            await answer.read()
            return answer.status, time.monotonic() - began
    except (aiohttp.ClientError, TimeoutError):
        return 0, time.monotonic() - began


def _raw(port: int, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    """A request as it is, without a client that would tidy the path up. Status 0: the connection was closed."""
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.putrequest("GET", path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (http.client.HTTPException, OSError):
        return 0, b""
    finally:
        connection.close()


def _trap(folder: Path) -> None:
    for kind in ("codes", "signals", "levers"):
        (folder / kind).mkdir(parents=True)
    codes = folder / "codes"
    os.mkfifo(codes / "pipe.yaml")
    (codes / "zero.yaml").symlink_to("/dev/zero")
    (codes / "nowhere.yaml").symlink_to(folder / "nowhere")
    (codes / "itself.yaml").symlink_to(codes / "itself.yaml")
    (codes / "folder.yaml").mkdir()
    (codes / "passwd.yaml").symlink_to("/etc/passwd")
    (codes / "large.yaml").write_bytes(b"a: " + b"x" * 1_000_000)
    (codes / "aliases.yaml").write_text(
        "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*{'a' if not n else f'b{n - 1}'}, *a]\n" for n in range(40))
    )
    (codes / "deep.yaml").write_text("a: " + "[" * 5000 + "]" * 5000)
    (codes / "bytes.yaml").write_bytes(bytes(range(256)) * 10)
    (codes / "object.yaml").write_text(f"!!python/object/apply:os.system ['touch {folder.parent / 'escaped'}']\n")
    (folder / "signals" / "list.yaml").write_text("families: [a, b]\nsignals: 3\n")
    (folder / "levers" / "path.yaml").write_text("name: ../../../etc/kvitals-chaos\n")
    for number in range(1200):  # the last ones: of many problems the first are listed
        (codes / f"zz-many-{number}.yaml").write_text("code: ZZZ\n")


def _recordings(folder: Path) -> dict[str, Path]:
    """Recordings that no recorder made, by what is wrong with them."""
    made = {name: folder / f"{name}.kvcap" for name in ("traversal", "zip", "noise", "cut", "bomb")}
    if made["traversal"].exists():
        return made
    targets = [{"url": "file:///etc/passwd", "name": "../../../etc/kvitals-chaos"}, {"url": "http://h:1/../../x"}]
    with CaptureWriter(made["traversal"], version="../../x", meta={"targets": targets}) as writer:
        writer.write(Record(1.0, "../../../etc/kvitals-chaos", "../../x", b"\x80"))
    made["zip"].write_bytes(b"PK\x03\x04" + b"../../../etc/kvitals-chaos" * 100)
    made["noise"].write_bytes(os.urandom(100_000))
    whole = (ROOT / "app/demo/healthy.kvcap").read_bytes()
    made["cut"].write_bytes(whole[: len(whole) // 2])
    made["bomb"].write_bytes(whole[:4000] + b"\x00" * 50_000_000)
    return made
