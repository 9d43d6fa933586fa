"""Sources of targets: files that change, what a node does with targets that change."""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
from aiohttp import web
from aiohttp.test_utils import TestServer

from kvitals.agent.discovery import DiscoveredTarget as Process
from kvitals.agent.discovery import DiscoveredTargets
from kvitals.agent.node import Node
from kvitals.agent.target_sources import MAX_FILES, Sources, TargetFiles, scrape_target
from kvitals.config import MAX_TARGETS, AgentTable, Config, ConfigError, Seconds, SomeSlo, TargetTable
from kvitals.series.promql import evaluate
from kvitals.series.types import METRIC_NAME, Matcher, MatchOp

DEAD = "http://127.0.0.1:9"


@dataclass
class Finder:
    """What is found among processes, and what is said of others."""

    urls: list[str] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    def scan(self) -> DiscoveredTargets:
        return DiscoveredTargets(tuple(Process("vllm", url, 1, True) for url in self.urls), self.notes)


def sources(config: Config, finder: Finder | None = None) -> Sources:
    return Sources(config, finder or Finder())  # type: ignore[arg-type]


async def urls(found: Sources) -> list[str]:
    return [target.url for target in (await found.look(at_once=True)).targets]


class TestFiles:
    def test_a_file_is_read_when_it_is_at_rest(self, tmp_path: Path) -> None:
        file = tmp_path / "t"
        file.write_text(f"{DEAD}\n")
        files = TargetFiles((file,))
        assert files.look(at_once=True)
        file.write_text("")
        assert not files.look()  # perhaps someone is writing it
        file.write_text(f"{DEAD}\nhttp://b\n")
        assert not files.look()
        assert files.look()
        assert [t.url for t in files.targets] == [DEAD, "http://b"]
        assert not files.look()

    def test_a_file_that_broke_keeps_its_targets_and_another_goes_on(self, tmp_path: Path) -> None:
        one, two = tmp_path / "a.json", tmp_path / "b.json"
        one.write_text('[{"targets": ["a"]}]')
        two.write_text('[{"targets": ["b"]}]')
        files = TargetFiles((tmp_path / "*.json",))
        files.look(at_once=True)
        one.write_text("[{")
        two.write_text('[{"targets": ["c"]}]')
        assert files.look(at_once=True)
        assert [t.url for t in files.targets] == ["http://a", "http://c"]
        (problem,) = files.problems
        assert str(one) in problem and "the agent keeps its 1 earlier targets" in problem
        one.write_text('[{"targets": []}]')
        files.look(at_once=True)
        assert [t.url for t in files.targets] == ["http://c"]
        assert files.problems == ()

    def test_a_file_of_a_pattern_that_is_gone_takes_its_targets_with_it_and_a_named_one_does_not(
        self, tmp_path: Path
    ) -> None:
        named, matching = tmp_path / "named", tmp_path / "x.txt"
        named.write_text("a")
        matching.write_text("b")
        files = TargetFiles((named, tmp_path / "*.txt"))
        files.look(at_once=True)
        named.unlink()
        matching.unlink()
        files.look(at_once=True)
        assert [t.url for t in files.targets] == ["http://a"]
        assert "No such file" in files.problems[0]

    def test_not_without_end(self, tmp_path: Path) -> None:
        for n in range(MAX_FILES + 5):
            (tmp_path / f"{n}.txt").write_text(f"h{n}")
        files = TargetFiles((tmp_path / "*.txt",))
        files.look(at_once=True)
        assert len(files.targets) == MAX_FILES
        assert files.problems == (f"{MAX_FILES + 5} targets files, only the first {MAX_FILES} are read",)


class TestSources:
    async def test_the_first_that_names_a_url_counts(self, tmp_path: Path) -> None:
        (tmp_path / "t").write_text(json.dumps([{"targets": ["a", "b"], "labels": {"pool": "file"}}]))
        config = Config(
            targets=(TargetTable(url="http://a", name="mine"),), agent=AgentTable(targets_file=(tmp_path / "t",))
        )
        first, second = (await sources(config).look(at_once=True)).targets
        assert (first.name, first.labels) == ("mine", {})
        assert second.labels == {"pool": "file"}

    @pytest.mark.parametrize("same", ["http://a/metrics", "http://A/", "a:80/metrics"])
    async def test_a_page_written_in_two_ways_is_one_target(self, same: str) -> None:
        assert await urls(sources(Config(targets=(TargetTable(url="http://a"), TargetTable(url=same))))) == ["http://a"]

    async def test_processes_are_looked_at_where_nothing_is_named(self, tmp_path: Path) -> None:
        finder = Finder([DEAD], ("one is headless",))
        found = sources(Config(), finder)
        look = await found.look()
        assert ([t.url for t in look.targets], look.said) == ([DEAD], ("one is headless",))
        finder.urls = []
        look = await found.look()
        assert ([t.url for t in look.targets], look.said) == ([DEAD], ())  # went away, and is worth a finding
        found.configure(Config(targets=(TargetTable(url="http://a"),)))
        assert await urls(found) == ["http://a"]
        assert await urls(sources(Config(agent=AgentTable(discover=False)), Finder([DEAD]))) == []
        empty = tmp_path / "t"
        empty.write_text("")
        assert await urls(sources(Config(agent=AgentTable(targets_file=(empty,))), Finder([DEAD]))) == []

    async def test_not_without_end(self, tmp_path: Path) -> None:
        (tmp_path / "t").write_text("\n".join(f"h{n}" for n in range(MAX_TARGETS + 1)))
        look = await sources(Config(agent=AgentTable(targets_file=(tmp_path / "t",)))).look(at_once=True)
        assert len(look.targets) == MAX_TARGETS
        assert look.said == (
            f"{MAX_TARGETS + 1} targets, only the first {MAX_TARGETS} are watched: use several agents",
        )


class TestScraped:
    def test_what_is_handed_on(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text(" secret\n")
        target = TargetTable(
            url=DEAD,
            labels={"role": "router"},
            bearer_file=tmp_path / "token",
            ca_file=Path("/ca"),
            prefixes={"b_": "own:"},
        )
        config = Config(agent=AgentTable(prefixes={"a_": "vllm:", "b_": "all:"}, timeout=Seconds(7)))
        made = scrape_target(target, {"node": "n", "role": "decode"}, config)
        assert made.labels == {"node": "n", "role": "router"}
        assert (made.token, made.ca_file, made.timeout) == ("secret", "/ca", 7.0)
        assert made.prefixes == {"a_": "vllm:", "b_": "own:"}

    @pytest.mark.parametrize("content", [b"\xff\xfe", b"two\nlines", b"x\r\nInjected: 1", b"\n"])
    def test_no_token(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "token").write_bytes(content)
        said = "must contain one secret on one line|is empty|not plain text"
        with pytest.raises(ConfigError, match=rf"{DEAD}: bearer_file {tmp_path}/token .*({said})"):
            scrape_target(TargetTable(url=DEAD, bearer_file=tmp_path / "token"), {}, Config())

    def test_no_token_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="No such file"):
            scrape_target(TargetTable(url=DEAD, bearer_file=tmp_path / "token"), {}, Config())


PAGE = b'# TYPE acme_num_requests_running gauge\nacme_num_requests_running{model_name="m"} 3.0\n'


class Engine:
    """An engine's page that wants a token."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    async def page(self, request: web.Request) -> web.Response:
        self.tokens.append(request.headers.get("Authorization", ""))
        return web.Response(body=PAGE)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/metrics", self.page)
        return app


async def read(node: Node) -> None:
    for record in await node.read():
        node.ingest_recorded(record)


def values(node: Node, expr: str, at: float) -> dict[str, float]:
    found = evaluate(expr, node.window, at)
    assert not isinstance(found, float)
    return {labels["engine"]: value for labels, value in found}


class TestNode:
    async def test_a_token_that_rotates_and_other_objectives_leave_the_series(self, tmp_path: Path) -> None:
        token, engine = tmp_path / "token", Engine()
        token.write_text("one")
        async with TestServer(engine.app()) as server:
            url = str(server.make_url("/")).rstrip("/")
            target = TargetTable(url=url, name="e", bearer_file=token, prefixes={"acme_": "vllm:"})
            node = Node(Config(targets=(target,)))
            await node.open()
            await read(node)
            token.write_text("two")
            assert await node.refresh() == []
            await asyncio.sleep(0.002)  # two rows of one time would be refused
            await read(node)
            assert engine.tokens[0] == "Bearer one" and engine.tokens[-1] == "Bearer two"
            other = msgspec.structs.replace(target, slo=SomeSlo(itl_p99_seconds=9))
            node.reconfigure(Config(targets=(other,), agent=AgentTable(timeout=Seconds(9))))
            assert await node.refresh() == []
            (frame,) = node.window.select(*everything("kvitals_requests_running"))
            assert frame.values.tolist() == [[3.0], [3.0]]
            await node.close()

    @pytest.mark.parametrize("more", [{"name": "new"}, {"name": "new", "prefixes": {"a_": "b_"}}])
    async def test_another_name_begins_anew(self, more: dict[str, Any]) -> None:
        node = Node(Config(targets=(TargetTable(url=DEAD, name="new" if "prefixes" in more else "old"),)))
        await node.open()
        await read(node)
        node.reconfigure(Config(targets=(TargetTable(url=DEAD, **more),)))
        said = await node.refresh()
        assert said[0] == f"{DEAD}: changed, watched from now on"
        await read(node)
        names = {
            labels["engine"]
            for frame in node.window.select(*everything("kvitals_target_up"))
            for labels in frame.labels
        }
        assert names == {"new"}
        await node.close()

    async def test_a_wrong_target_refuses_a_configuration_as_a_whole(self, tmp_path: Path) -> None:
        node = Node(Config(targets=(TargetTable(url=DEAD),)))
        await node.open()
        for wrong in (TargetTable(url=DEAD, bearer_file=tmp_path / "x"), TargetTable(url=DEAD, ca_file=tmp_path / "x")):
            with pytest.raises(ConfigError, match=DEAD):
                node.reconfigure(Config(targets=(wrong,)))
            with pytest.raises(ConfigError, match=DEAD):
                await Node(Config(targets=(wrong,))).open()
        assert node.config.targets == (TargetTable(url=DEAD),)
        await node.close()

    async def test_what_others_were_made_with_stays(self) -> None:
        node = Node(Config())
        before = node.config
        node.reconfigure(Config(agent=AgentTable(window=Seconds(60), interval=Seconds(1))))
        assert node.config.agent.window == before.agent.window
        assert node.config.labels == before.labels
        assert node.config.agent.interval == 1

    async def test_a_page_over_tls(self, tmp_path: Path) -> None:
        authority, engine = trustme.CA(), Engine()
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        context = server_context(authority)
        server = TestServer(engine.app(), scheme="https")
        await server.start_server(ssl=context)
        url = str(server.make_url("/")).rstrip("/")
        for target, up in (
            (TargetTable(url=url, name="a", ca_file=tmp_path / "ca.pem", prefixes={"acme_": "vllm:"}), 1.0),
            (TargetTable(url=url, name="b", insecure=True, prefixes={"acme_": "vllm:"}), 1.0),
            (TargetTable(url=url, name="c"), 0.0),
        ):
            node = Node(Config(targets=(target,)))
            await node.open()
            records = await node.read()
            for record in records:
                node.ingest_recorded(record)
            assert values(node, "kvitals_target_up", max(r.t for r in records) + 1) == {target.name: up}
            await node.close()
        await server.close()


def server_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


def everything(name: str) -> Any:
    return (Matcher(METRIC_NAME, MatchOp.EQ, name),), 0.0, 1e12
