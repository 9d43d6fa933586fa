"""The situations: what is done, and what must hold meanwhile and afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from kvitals.agent.listeners import LISTENERS
from kvitals.agent.tap.client_connections import STALLED_SECONDS

from . import attacks, good, http2, planted
from .clients import HOST, Connection, Reader, page, request, told
from .limits import PAGE_BYTES, RECOVER_SECONDS
from .pages import Page
from .spans import export as spans
from .stage import Ports, Stage

SETTLED_SECONDS = 25.0
"""Until the last part is a record and counted: 7 s, a look of the agent, and a row."""

FLOWING_BYTES = 1e6
"""A second through the tap: less is the good client's and not that of streams."""

CALM_SECONDS = 3
"""With less than that in each, streams have ended; one such second also comes where the machine does other work."""

FULL_SECONDS = 60.0
"""Until the kernel's buffers of all who do not read are full, on a machine that does other work."""

TOP = 50
"""Tenants with series of their own, by default."""


@dataclass(frozen=True)
class Size:
    """How much is done."""

    tenants: int
    bomb_mb: int
    log_mb: int
    rounds: int  # of garbage
    clients: int  # that never read, or are slow
    seconds: float  # for which they go on
    wait_for_refusals: bool
    catch_up: float  # seconds that a log may take to be read


SMALL = Size(3_000, 100, 50, 1, 200, 1.0, False, 60.0)
FULL = Size(100_000, 1024, 1000, 20, 200, 30.0, True, 400.0)


@dataclass
class Told:
    """What a situation came to."""

    said: list[str] = field(default_factory=list)  # what was seen, for people
    broken: list[str] = field(default_factory=list)  # what should have held
    recovered: float | None = None  # seconds

    def expect(self, held: bool, what: str) -> None:
        if not held:
            self.broken.append(what)


IDLE, HALF_HEADS, BODIES = 1024, 300, 200
MAX_FILES = 200
"""Of the agent, with nothing but the good client."""

Situation = Callable[[Stage, Size, Told], Awaitable[None]]


async def tenants(stage: Stage, size: Size, told_: Told) -> None:
    """100,000 distinct tenants over OTLP, as many in a log, and as many in the tap's header."""
    names = [planted.tenant(number) for number in range(size.tenants)]
    mine = {stage.pseudonym(name) for name in (good.BY_TAP, good.BY_OTLP, good.BY_LOG)}
    await stage.quiet()
    known = set((await stage.page()).by("tenant", "kvitals_tenant_requests_total"))
    told_.expect(mine <= known, "the good client's requests are not counted")  # who has series keeps them

    def others(now: Page) -> float:
        by = now.by("tenant", "kvitals_tenant_requests_total")
        return sum(count for tenant, count in by.items() if tenant not in mine)

    before, began = others(await stage.page()), time.monotonic()
    again = await attacks.tenants_by_spans(stage.session, stage.ports.http, names)
    spent = [time.monotonic() - began]
    await asyncio.to_thread(attacks.tenants_by_log, stage.tenants_log, names)
    read = await stage.until(
        lambda now: now.total("kvitals_parts_total", source="tenants") == size.tenants, size.catch_up
    )
    told_.expect(read is not None, f"not all {size.tenants} lines were read")
    spent.append(time.monotonic() - began - sum(spent))
    broken = await attacks.tenants_by_tap(stage.ports.tap, names)
    spent.append(time.monotonic() - began - sum(spent))
    told_.expect(not broken, f"{len(broken)} requests through the tap broke: {broken[:1]}")
    whole = await stage.until(
        lambda now: others(now) - before >= 3 * size.tenants, SETTLED_SECONDS + size.tenants / 5000
    )
    told_.recovered = whole[1] if whole else None
    now = await stage.page()
    dropped = (await stage.tap_page()).total("kvitals_tap_parts_dropped_total")
    lost = 3 * size.tenants - (others(now) - before)
    told_.expect(0 <= lost <= dropped, f"{lost:.0f} of {3 * size.tenants} requests are missing, {dropped:.0f} are told")
    labels = now.by("tenant", "kvitals_tenant_requests_total")
    told_.expect(len(labels) <= TOP + 2, f"{len(labels)} tenants have series")
    told_.expect(len(now.text) <= PAGE_BYTES, f"the page has {len(now.text)} bytes")
    told_.said += [
        f"{len(labels)} of {3 * size.tenants} tenants have series, `other` {labels.get('other', 0):.0f} requests",
        f"page {len(now.text) / 1e3:.0f} KB",
        f"spans, lines, tap in {spent[0]:.0f}, {spent[1]:.0f}, {spent[2]:.0f} s",
        f"exporters told to wait {again} times",
        f"the tap dropped {dropped:.0f} parts and said so",
    ]


async def garbage(stage: Stage, size: Size, told_: Told) -> None:
    """Bytes that are no spans over gRPC and HTTP, bad content types, bad JSON."""
    before = (await stage.page()).total("kvitals_parts_dropped_total", source="otlp", reason="malformed")
    by_http = await attacks.send_garbage_over_http(stage.session, stage.ports.http, size.rounds)
    by_grpc = await attacks.send_garbage_over_grpc(stage.ports.grpc, size.rounds)
    seen = await stage.until(
        lambda now: now.total("kvitals_parts_dropped_total", source="otlp", reason="malformed") > before, 15.0
    )
    told_.expect(seen is not None, "nothing of it was counted as dropped")
    told_.recovered = seen[1] if seen else None
    told_.expect(not any(code.startswith("5") for code in by_http), f"an error of the server's own: {dict(by_http)}")
    told_.expect(not {"UNKNOWN", "INTERNAL"} & set(by_grpc), f"an error of the server's own: {dict(by_grpc)}")
    told_.said += ["HTTP " + _counts(by_http), "gRPC " + _counts(by_grpc)]
    if seen is not None:
        told_.said.append("dropped " + _counts(seen[0].by("reason", "kvitals_parts_dropped_total", source="otlp")))


async def bomb(stage: Stage, size: Size, told_: Told) -> None:
    """A gigabyte of zeros as a megabyte of gzip, over HTTP and gRPC, 16 at a time."""
    packed = await asyncio.to_thread(http2.zeros, size.bomb_mb)
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
    url = f"http://{HOST}:{stage.ports.http}/v1/traces"

    async def by_http() -> tuple[int, bytes]:
        async with stage.session.post(url, data=packed, headers=headers) as answer:
            return answer.status, await answer.read()

    found = await asyncio.gather(*(by_http() for _ in range(16)))
    told_.expect({status for status, _ in found} <= {413, 429}, f"HTTP answered {sorted({s for s, _ in found})}")
    whole = http2.message(packed, True)
    ended = await asyncio.gather(*(http2.call(stage.ports.grpc, whole) for _ in range(16)))
    # Code 7 is REFUSED_STREAM: an address may have 12 calls at one time.
    told_.expect(
        set(ended) <= {"refused", "reset, code 7"} and "refused" in ended, f"gRPC ended with {sorted(set(ended))}"
    )
    told_.expect(
        await http2.call(stage.ports.grpc, http2.message(spans([planted.tenant("bomb")]), False)) == "answered",
        "gRPC took no good request afterwards",
    )
    seen = await stage.until(lambda now: now.total("kvitals_parts_dropped_total", reason="too_large") >= 1, 15.0)
    told_.expect(seen is not None, "no request was counted as too large")
    told_.recovered = seen[1] if seen else None
    text = found[0][1][4:].decode(errors="replace")
    told_.said += [f"{len(packed) / 1e6:.1f} MB of gzip, {size.bomb_mb} MB of zeros", f"{found[0][0]} “{text}”"]


async def log(stage: Stage, size: Size, told_: Told) -> None:
    """A gigabyte of log: lines with prompts, of 3 and 10 MB, no newline at all, rotated and truncated."""
    flood, mega = attacks.Flood(stage.flood_log), 1 << 20
    cpu, began = stage.agent.cpu_seconds(), time.monotonic()

    def is_read(now: Page) -> bool:
        dropped = now.by("reason", "kvitals_parts_dropped_total", source="flood")
        return (
            now.total("kvitals_parts_total", source="flood") == flood.written.good
            and dropped.get("too_long", 0) == flood.written.too_long
            and dropped.get("not_json", 0) == flood.written.not_json
        )

    await asyncio.to_thread(flood.write, size.log_mb * mega * 4 // 10)
    flood.rotate()
    await asyncio.to_thread(flood.without_newline, size.log_mb * mega // 10)
    await asyncio.to_thread(flood.write, size.log_mb * mega * 3 // 10)
    wrote = time.monotonic() - began
    behind = await stage.until(lambda now: "flood behind" in now.complaints, 15.0)
    caught_up = await stage.until(is_read, size.catch_up)
    flood.truncate()
    await asyncio.to_thread(flood.write, size.log_mb * mega * 2 // 10)
    ended = time.monotonic()
    read = await stage.until(is_read, size.catch_up)
    told_.expect(caught_up is not None and read is not None, f"not all was read of {flood.written}")
    told_.recovered = time.monotonic() - ended if read else None
    now = await stage.page()
    told_.expect(is_read(now), f"counts are not those of {flood.written}")
    told_.expect("flood behind" not in now.complaints, "the log is still behind")
    took = time.monotonic() - began
    told_.said += [
        f"{flood.written.size / 1e6:.0f} MB in {took:.0f} s, written in {wrote:.0f} s",
        f"{stage.agent.cpu_seconds() - cpu:.1f} CPU s of the agent",
        f"{flood.written.good} good lines, {flood.written.too_long} too long, {flood.written.not_json} no JSON: exact",
        f"said behind: {'yes' if behind else 'it never was'}",
    ]


async def never_reads(stage: Stage, size: Size, told_: Told) -> None:
    """200 clients of the tap that ask for streams without an end and never read."""
    clients = [Reader(stage.ports.tap) for _ in range(size.clients)]
    before = await stage.tap_page()
    for client in clients:
        await client.ask(request(planted.tenant("deaf"), events=1_000_000_000, every=20, size=16_000))
    began, passed = time.monotonic(), [_passed(before)]
    while len(passed) <= CALM_SECONDS or passed[-1] - passed[-1 - CALM_SECONDS] > FLOWING_BYTES * CALM_SECONDS:
        if time.monotonic() - began > FULL_SECONDS:
            break
        await asyncio.sleep(1.0)
        passed.append(_passed(await stage.tap_page()))
    await asyncio.sleep(size.seconds)
    now = await stage.tap_page()
    open_ = now.total("kvitals_tap_requests_in_flight")
    told_.expect(open_ >= size.clients, f"only {open_:.0f} of {size.clients} requests are under way")
    more = _passed(now) - passed[-1]
    told_.expect(more < FLOWING_BYTES * size.seconds, f"{more / 1e6:.1f} MB went on to who does not read")
    for client in clients:
        client.leave()
    left = time.monotonic()

    def _aborted(one: Page) -> float:
        return one.total("kvitals_tap_requests_total", outcome="aborted")

    while (now := await stage.tap_page()) and _aborted(now) - _aborted(before) < size.clients:
        if time.monotonic() - left > RECOVER_SECONDS:
            break
        await asyncio.sleep(0.1)
    told_.recovered = time.monotonic() - left
    told_.expect(_aborted(now) - _aborted(before) == size.clients, "not all of them were counted as aborted")
    told_.expect(now.total("kvitals_tap_requests_in_flight") <= good.STREAMS, "requests are left under way")
    told_.said += [
        f"{size.clients} clients",
        f"{(passed[-1] - passed[0]) / 1e6 / size.clients:.2f} MB each in kernels and buffers after {len(passed) - 1} s",
        f"then {size.seconds:.0f} s with nothing more",
        f"aborted {_aborted(now) - _aborted(before):.0f}",
    ]


async def slow_clients(stage: Stage, size: Size, told_: Told) -> None:
    """200 clients of the tap and 200 of OTLP over HTTP that send their heads byte by byte, and 64 calls of gRPC whose
    requests never end."""
    half = http2.message(bytes(1000), False)[:50]
    calls = [asyncio.create_task(http2.call(stage.ports.grpc, half, ends=False, seconds=60)) for _ in range(64)]
    heads = {stage.ports.tap: request(planted.tenant("slow")), stage.ports.http: b"POST /v1/traces HTTP/1.1\r\nX-A: b"}
    groups = {port: [Reader(port, small=False) for _ in range(size.clients)] for port in heads}
    for port, clients in groups.items():
        for client in clients:
            await client.ask(heads[port][:1])
    until, at, answers = (
        time.monotonic() + (LISTENERS["tap"].head + 8 if size.wait_for_refusals else size.seconds),
        1,
        set(),
    )
    while time.monotonic() < until:
        for port, clients in groups.items():
            for client in clients:
                await client.send(heads[port][at % 30 : at % 30 + 1])
        at += 1
        if not size.wait_for_refusals or time.monotonic() < until - 2:
            await asyncio.sleep(0.5)
        else:
            break
    for client in groups[stage.ports.tap]:
        answers.add((client.waiting() or b"").partition(b"\r\n")[0].decode(errors="replace"))
    if size.wait_for_refusals:
        told_.expect(answers == {"HTTP/1.1 408 Request Timeout"}, f"the tap answered {sorted(answers)}")
    taken = attacks.tenants_by_spans(stage.session, stage.ports.http, [planted.tenant("beside")])
    try:
        again = await asyncio.wait_for(taken, 30)
        told_.said.append(f"spans beside them were taken over HTTP, told to wait {again} times")
    except (TimeoutError, RuntimeError):
        told_.broken.append("OTLP over HTTP took nothing beside slow clients")
    whole, again = http2.message(spans([planted.tenant("beside")]), False), 0
    while again < 16 and await http2.call(stage.ports.grpc, whole) != "answered":
        again += 1
        await asyncio.sleep(1.0)
    told_.expect(again < 16, "OTLP over gRPC took nothing beside calls that never end")
    told_.said.append(f"over gRPC after {again} s")
    for one in calls:
        one.cancel()
    left = time.monotonic()
    for clients in groups.values():
        for client in clients:
            client.leave()
    gone = False
    while not gone and time.monotonic() - left < RECOVER_SECONDS:
        gone = (await stage.tap_page()).total("kvitals_tap_connections") <= good.STREAMS
        await asyncio.sleep(0.1)
    told_.expect(gone, "connections are left at the tap")
    told_.recovered = time.monotonic() - left
    told_.said += [
        f"{size.clients} and {size.clients} clients",
        f"the tap: {', '.join(sorted(answers)) or 'no word yet'}",
    ]


TAP_CONNECTIONS = 128
TAP_STALLED = 300


async def tap_held(stage: Stage, size: Size, told_: Told) -> None:
    """A tap with 128 connections gets 300 clients whose bodies never come, and heads, chunks and interim responses that
    are meant to hold its loop. Every request of a good client is answered, and SIGTERM ends the tap in time."""
    ports = Ports()
    options = (f"--max-connections={TAP_CONNECTIONS}",)
    tap = await stage.start_tap(ports, stage.engine_port, "held-tap", stage.ports.agent, options)
    connection, whose, longest, answered = Connection(ports.tap), planted.tenant("beside"), 0.0, 0

    async def ask(times: int) -> None:
        nonlocal longest, answered
        for _ in range(times):
            began = time.monotonic()
            answer = await connection.ask(request(whose))
            told_.expect(b" 200 OK" in answer[:20], f"the good client got {answer[:60]!r}")
            longest, answered = max(longest, time.monotonic() - began), answered + 1

    await ask(3)
    cpu = tap.cpu_seconds()
    stalled, *others = attacks.TAP_ATTACKS.values()
    held = [Reader(ports.tap, small=False) for _ in range(TAP_STALLED)]
    held += [Reader(ports.tap, small=False) for _ in range(5 * len(others))]
    asking = asyncio.create_task(ask(40))
    try:
        for number, client in enumerate(held):
            if number == TAP_CONNECTIONS:
                await asyncio.sleep(3 * STALLED_SECONDS)  # a fast machine has sent all before the first has stalled
            attack = asyncio.create_task(client.ask(stalled if number < TAP_STALLED else others[number % len(others)]))
            await asyncio.wait((attack,), timeout=1.0)
            attack.cancel()
            await asyncio.gather(attack, return_exceptions=True)
        await asking
        await ask(10)
    except (OSError, EOFError) as error:
        told_.broken.append(f"a request of the good client broke: {error!r}")
    spent = tap.cpu_seconds() - cpu
    told_.expect(longest < 2.0, f"a request of the good client took {longest:.1f} s")
    now = await stage.tap_page(ports)
    told_.expect(now.total("kvitals_tap_refused_total", reason="gave_way") > 0, "no connection gave way")
    stopping = time.monotonic()
    await tap.stop()
    stopped = time.monotonic() - stopping
    told_.expect(stopped < 5.0, f"the tap took {stopped:.1f} s to stop")
    for client in held:
        client.leave()
    told_.said += [
        f"{answered} requests of the good client, the longest {longest * 1e3:.0f} ms",
        f"{spent:.1f} s of CPU, stopped in {stopped:.1f} s",
        "refused " + _counts(now.by("reason", "kvitals_tap_refused_total")),
    ]


async def connections(stage: Stage, size: Size, told_: Told) -> None:
    """From one address, 1,024 idle connections to the API and to OTLP each, 300 half heads, 200 bodies that never
    arrive. Another address asks for /-/healthy every 50 ms meanwhile."""
    body = b"POST /api/v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    floods = [(stage.ports.agent, IDLE, b""), (stage.ports.http, IDLE, b""), (stage.ports.grpc, IDLE, b"")]
    floods += [(stage.ports.agent, HALF_HEADS, b"GET / HT"), (stage.ports.agent, BODIES, body)]
    answers: list[float] = []
    probing = asyncio.create_task(_probe(stage.ports.agent, answers))
    readers: list[Reader] = []
    try:
        for port, count, said in floods:
            more = [Reader(port, small=False) for _ in range(count)]
            for reader in more:
                await reader.ask(said)
            readers += more
            await asyncio.sleep(1.0)
            stage.check()
        again = await attacks.tenants_by_spans(stage.session, stage.ports.http, [planted.tenant("beside")])
        told_.expect(again <= 5, f"spans beside idle connections were told to wait {again} times")
    finally:
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
        for reader in readers:
            reader.leave()
    failed = sum(seconds == float("inf") for seconds in answers)
    told_.expect(len(answers) > 10 and not failed, f"{failed} of {len(answers)} probes from another address failed")
    left = time.monotonic()
    is_closed = await attacks.until_true(lambda: stage.agent.files() <= MAX_FILES, RECOVER_SECONDS)
    told_.recovered = time.monotonic() - left
    told_.expect(is_closed, f"{stage.agent.files()} files are left open")
    told_.said += [
        f"{len(readers)} connections",
        f"{len(answers)} probes from another address, the slowest {max(answers):.2f} s",
    ]


async def _probe(port: int, answers: list[float]) -> None:
    """Ask for /-/healthy from another address every 50 ms; appends the seconds of each answer, or infinity."""
    while True:
        began = time.monotonic()
        writer = None
        try:
            async with asyncio.timeout(10):
                reader, writer = await asyncio.open_connection(HOST, port, local_addr=("127.0.0.2", 0))
                writer.write(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                answers.append(time.monotonic() - began if b" 200 " in await reader.readline() else float("inf"))
        except (OSError, TimeoutError):
            answers.append(float("inf"))
        finally:
            if writer is not None:
                writer.close()
        await asyncio.sleep(0.05)


async def engine_killed(stage: Stage, size: Size, told_: Told) -> None:
    """An engine of its own, behind a tap of its own, is killed in the middle of 20 streams."""
    ports, port = Ports(), _another_port()
    engine = await stage.start_engine(port, "victim")
    tap = await stage.start_tap(ports, port, "victims-tap", stage.ports.agent)
    whose = planted.tenant("victim")
    clients = [Reader(ports.tap, small=False) for _ in range(20)]
    for client in clients:
        await client.ask(request(whose, events=10_000, every=20))
    await asyncio.sleep(1.0)
    await engine.kill()
    killed = time.monotonic()
    ends = await asyncio.gather(*(client.rest() for client in clients))
    told_.expect(time.monotonic() - killed < 2.0, "clients were not told within 2 s")
    told_.expect(
        all(said and how != "open" and not said.endswith(b"0\r\n\r\n") for said, how in ends),
        "a client could take its stream for whole",
    )
    refused = await Connection(ports.tap).ask(request(whose))
    told_.expect(b" 502 " in refused[:20], f"without an engine the tap answers {refused[:40]!r}")
    await stage.start_engine(port, "victim")
    again = await Connection(ports.tap).ask(request(whose))
    told_.expect(b" 200 " in again[:20], "the engine is back and its tap does not know")
    told_.recovered = time.monotonic() - killed
    records = f"/api/v1/requests?newest=1000&tenant={stage.pseudonym(whose)}"

    async def is_told() -> str:
        listed, _ = await page(stage.session, stage.ports.agent, records)
        broken = listed.count('"upstream_closed"')
        return "" if broken == len(ends) else f"{broken} of {len(ends)} broken streams have records that say so"

    stage.later.append((time.monotonic(), is_told))
    told_.said += [
        f"20 streams ended as {', '.join(sorted({how for _, how in ends}))}",
        f"then 502 “{told(refused)}”",
        "their records are looked at once they are there",
    ]
    await tap.stop()


async def agent_killed(stage: Stage, size: Size, told_: Told) -> None:
    """The agent is killed while the tap runs, and started again."""
    before = await stage.tap_page()
    await stage.agent.kill()
    await asyncio.sleep(4.0)
    without = await stage.tap_page()
    stage.agent = await stage.start_agent()
    back = time.monotonic()
    while (now := await stage.tap_page()).total("kvitals_tap_parts_waiting") > 2 * good.STREAMS * 20:
        if time.monotonic() - back > 2 * RECOVER_SECONDS:
            break
        await asyncio.sleep(0.25)
    told_.recovered = time.monotonic() - back
    told_.expect(without.total("kvitals_tap_agent_up") == 0, "the tap did not see that the agent was away")
    told_.expect(now.total("kvitals_tap_agent_up") == 1, "the tap did not see that the agent is back")
    dropped = now.total("kvitals_tap_parts_dropped_total") - before.total("kvitals_tap_parts_dropped_total")
    told_.expect(dropped == 0, f"the tap dropped {dropped:.0f} parts meanwhile")
    passed = without.total("kvitals_tap_requests_total") - before.total("kvitals_tap_requests_total")
    told_.expect(passed > 0, "no traffic passed without the agent")
    told_.said += [
        f"{passed:.0f} requests passed meanwhile",
        f"{without.total('kvitals_tap_parts_waiting'):.0f} parts waited, {dropped:.0f} were lost",
    ]


async def recorded(stage: Stage, size: Size, told_: Told) -> None:
    """`kvitals record` takes some of everything, and what it writes is searched."""
    ports, out = Ports(), stage.home / "captures" / "chaos.kvcap"
    out.parent.mkdir()
    recorder = await stage.start_recorder(ports, out, 120)
    tap = await stage.start_tap(ports, stage.engine_port, "recorders-tap")
    few = [planted.tenant(f"recorded-{number}") for number in range(200)]
    await attacks.tenants_by_spans(stage.session, ports.http, few)
    await asyncio.to_thread(attacks.tenants_by_log, stage.tenants_log, few)
    flood = attacks.Flood(stage.flood_log)
    await asyncio.to_thread(flood.write, 5 << 20)
    broken = await attacks.tenants_by_tap(ports.tap, few)
    await attacks.send_garbage_over_http(stage.session, ports.http, 1)
    await attacks.send_garbage_over_grpc(ports.grpc, 1)
    wanted = {"otlp": 200, "tenants": 200, "tap": 200 - len(broken), "flood": flood.written.good}
    had: dict[str, float] = {}
    for _ in range(60):
        had = Page((await page(stage.session, ports.agent))[0]).by("source", "kvitals_parts_total")
        if all(had.get(source, 0) >= count for source, count in wanted.items()):
            break
        await asyncio.sleep(0.5)
    await recorder.stop()
    await tap.stop()
    told_.expect(
        all(had.get(source, 0) >= count for source, count in wanted.items()), f"the recorder took {had} of {wanted}"
    )
    told_.expect(out.exists(), "there is no capture")
    if out.exists():
        told_.said.append(f"{sum(had.values()):.0f} parts in {out.stat().st_size / 1e3:.0f} KB")
        found = await asyncio.to_thread(planted.found_in, out.parent)
        told_.expect(not found, f"the capture holds what was planted: {found[:2]}")


SITUATIONS: dict[str, Situation] = {
    "engine_killed": engine_killed,
    "never_reads": never_reads,
    "slow_clients": slow_clients,
    "tap_held": tap_held,
    "connections": connections,
    "garbage": garbage,
    "bomb": bomb,
    "log": log,
    "tenants": tenants,
    "recorded": recorded,
    "agent_killed": agent_killed,
}
"""In the order in which they run. The last one takes the agent's counts away."""


def _passed(now: Page) -> float:
    return now.total("kvitals_tap_bytes_total", direction="response")


def _another_port() -> int:
    return Ports().agent


def _counts(by: dict[str, float] | dict[str, int]) -> str:
    return ", ".join(f"{name} {count:.0f}" for name, count in sorted(by.items()) if count)
