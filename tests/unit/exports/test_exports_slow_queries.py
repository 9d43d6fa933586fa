"""Queries that take long: in threads, within their time, on patterns and on history."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import pytest

import kvitals.series.series_view
from kvitals.agent.exports import api, wire
from kvitals.agent.exports.series_reader import SeriesReader
from kvitals.series.promql import evaluate
from kvitals.series.types import Frame, Labels, Matcher
from tests.unit.exports.api_stage import NOW, Client, data_of, error_of, serving, window
from tests.unit.test_patterns import SLOW


class TestThreads:
    async def test_the_source_is_read_on_the_loop_and_evaluated_elsewhere(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read_in: list[threading.Thread] = []
        evaluated_in: list[threading.Thread] = []

        class Watched:
            def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
                read_in.append(threading.current_thread())
                return []

        def watched(*arguments: Any, **more: Any) -> Any:
            evaluated_in.append(threading.current_thread())
            return evaluate(*arguments, **more)

        monkeypatch.setattr(api, "evaluate", watched)
        async with serving(Watched()) as client:
            await data_of(client, "query", query="x")
            await data_of(client, "labels")
            async with client.get("/metrics") as answer:
                assert answer.status == 200
        assert read_in == [threading.current_thread()] * 3
        assert evaluated_in != [threading.current_thread()]

    async def test_labels_are_matched_and_put_in_order_elsewhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        matched_in: list[threading.Thread] = []
        ordered_in: list[threading.Thread] = []
        matching, ordered = kvitals.series.series_view.matching, wire.sort_in_steps

        def noted_matching(*arguments: Any) -> Any:
            matched_in.append(threading.current_thread())
            return matching(*arguments)

        def noted_ordered(*arguments: Any, **more: Any) -> Any:
            ordered_in.append(threading.current_thread())
            return ordered(*arguments, **more)

        monkeypatch.setattr(kvitals.series.series_view, "matching", noted_matching)
        monkeypatch.setattr(wire, "sort_in_steps", noted_ordered)
        async with serving() as client:
            assert await data_of(client, "labels") == ["__name__", "engine"]
            assert await data_of(client, "label/engine/values") == ["a", "b"]
            picked = {"match[]": 'kvitals_running{engine="b"}'}
            assert await data_of(client, "series", **picked) == [{"__name__": "kvitals_running", "engine": "b"}]
            await data_of(client, "query", query='{engine=~"(a|b)"}')
        assert len(matched_in) >= 3 and threading.current_thread() not in matched_in
        assert len(ordered_in) == 3 and threading.current_thread() not in ordered_in

    async def test_a_query_is_parsed_elsewhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        parsed_in: list[threading.Thread] = []
        parse = api.parse

        def noted(text: str) -> Any:
            parsed_in.append(threading.current_thread())
            return parse(text)

        monkeypatch.setattr(api, "parse", noted)
        async with serving() as client:
            await data_of(client, "query", query="1")
            await data_of(client, "query_range", query="1", start="0", end="1", step="1")
            await data_of(client, "query_exemplars", query="x")
            await data_of(client, "series", **{"match[]": "x"})
        assert len(parsed_in) == 4 and threading.current_thread() not in parsed_in

    async def test_a_window_that_grows_while_it_is_asked(self) -> None:
        source = window()
        group = source.group("a")

        async def feed() -> None:
            for n in range(400):
                group.append(NOW + n, [0, 1], [float(n), float(n)])
                number = group.column(Labels({"__name__": "kvitals_running", "engine": f"e{n % 60}"}))
                assert number is not None
                await asyncio.sleep(0)

        async with serving(source) as client:
            feeding = asyncio.create_task(feed())
            while not feeding.done():
                await data_of(client, "query", query="sum(rate(kvitals_running[1m]))", time=str(NOW + 100))
            await feeding

    async def test_what_nobody_expected_is_not_shown(self) -> None:
        class Broken:
            def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
                raise RuntimeError("sk-secret")

        async with serving(Broken()) as client:
            for path in ("query", "labels"):
                status, kind, text = await error_of(client, path, query="x")
                assert (status, kind) == (500, "internal") and "sk-secret" not in text
            assert await data_of(client, "query", query="1")

    async def test_a_loop_that_is_too_busy_is_said_of_every_page(self) -> None:
        class Busy:
            def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
                raise TimeoutError

        async with serving(Busy()) as client:
            assert (await error_of(client, "query", query="x"))[:2] == (503, "timeout")
            async with client.get("/metrics") as page:
                assert page.status == 503 and "too busy" in (await page.json())["error"]


class _Endless:
    """A source whose series take for ever to match; it notes when somebody ends the work."""

    def __init__(self) -> None:
        self.ended = threading.Semaphore(0)

    def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
        return []

    def views(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Any]:
        return [self] if matchers[-1].value == "endless" else []

    def frame(self, check: Callable[[], None], cells: int | None) -> Frame | None:
        try:
            while True:
                check()
                time.sleep(0.01)
        finally:
            self.ended.release()

    def label_sets(self, check: Callable[[], None]) -> list[Labels]:
        self.frame(check, None)
        return []

    def keep(self) -> None:
        pass


class TestSlowQueries:
    @pytest.mark.parametrize(("path", "parameter"), [("query", "query"), ("series", "match[]"), ("labels", "match[]")])
    async def test_the_time_ends_them(self, path: str, parameter: str) -> None:
        async with serving(_Endless()) as client:
            asked = {parameter: "endless", "timeout": "0.1"}
            assert (await error_of(client, path, **asked))[:2] == (503, "timeout")
            assert await data_of(client, "query", query="1")

    async def test_a_client_that_goes_ends_them(self) -> None:
        source = _Endless()
        async with serving(source) as client:
            for path, parameter in (("query", "query"), ("series", "match[]")):  # as many as there are threads
                with pytest.raises(TimeoutError):
                    await client.get(
                        f"/api/v1/{path}", params={parameter: "endless"}, timeout=aiohttp.ClientTimeout(0.3)
                    )
            for _ in range(2):
                assert await asyncio.to_thread(source.ended.acquire, timeout=8.0), "it goes on to its deadline"
            assert await data_of(client, "query", query="1")

    async def test_the_time_that_is_spent_waiting_counts(self) -> None:
        async with serving(_Endless()) as client:
            slow = [asyncio.create_task(error_of(client, "query", query="endless", timeout="1")) for _ in range(2)]
            await asyncio.sleep(0.2)
            assert (await error_of(client, "query", query="1", timeout="0.1"))[:2] == (503, "timeout")
            assert {kind for _, kind, _ in await asyncio.gather(*slow)} == {"timeout"}


class TestPatterns:
    @pytest.mark.parametrize("pattern", SLOW)
    async def test_the_loop_goes_on_beside_patterns_that_backtracking_never_ends(self, pattern: str) -> None:
        source = window()
        group = source.group("long")
        columns = [group.column(Labels({"__name__": "x", "a": "a" * 500 + str(n)})) for n in range(50)]
        group.append(NOW, [c for c in columns if c is not None], [1.0] * 50)
        began = time.process_time()
        async with serving(source) as client:
            asked = [
                data_of(client, "query", query=f'{{__name__=~"{pattern}"}} or x{{a=~"{pattern}"}}'),
                data_of(client, "query", query=f'label_replace(x, "b", "$1", "a", "{pattern}")'),
                data_of(client, "series", **{"match[]": f'{{a=~"{pattern}"}}'}),
            ]
            answers = asyncio.gather(*asked)
            while not answers.done():
                async with client.get("/-/healthy") as healthy:
                    assert healthy.status == 200
            await answers
        assert time.process_time() - began < 5.0

    async def test_many_patterns_in_one_query_are_bounded(self, client: Client) -> None:
        large = ",".join(f'a{n}=~".{{1,400}}{n}"' for n in range(900))
        many = ",".join(f'a{n}!~"(x|{n})y"' for n in range(800))
        began = time.process_time()
        for matchers, status in ((large, 400), (many, 200)):
            async with client.post("/api/v1/query", data={"query": f"kvitals_running{{{matchers}}}"}) as answer:
                assert answer.status == status, (await answer.text())[:200]
        assert time.process_time() - began < 5.0


class SlowPast:
    """A history that takes a while, and remembers how many read it at the same time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.reading = self.most = self.reads = 0
        self.begun = threading.Event()

    def select(
        self, matchers: Sequence[Matcher], start: float, end: float, cells: int | None = None, check: Any = None
    ) -> list[Frame]:
        self.reading += 1
        self.reads += 1
        self.most = max(self.most, self.reading)
        self.begun.set()
        time.sleep(self.seconds)
        self.reading -= 1
        return []

    def labels(self, matchers: Sequence[Matcher], start: float, end: float) -> set[Labels]:
        self.select(matchers, start, end)
        return set()


class TestHistoryQueries:
    """Queries over history hold what they read: one runs at a time, and the others wait up to their deadline."""

    async def test_one_reads_history_at_a_time(self) -> None:
        past = SlowPast(0.05)
        async with serving(past=past, whole_since=lambda _: NOW) as client:
            asked = [data_of(client, "query", query="sum(kvitals_running)") for _ in range(8)]
            found = await asyncio.gather(*asked, data_of(client, "labels", start=str(NOW - 60)))
        assert (past.most, past.reads) == (1, 9)
        assert all(data["result"] for data in found[:8])

    async def test_what_waits_is_answered_at_its_deadline(self) -> None:
        past = SlowPast(1.0)
        async with serving(past=past, whole_since=lambda _: NOW) as client:
            first = asyncio.create_task(data_of(client, "query", query="kvitals_running"))
            assert await asyncio.to_thread(past.begun.wait, 10)
            status, kind, message = await error_of(client, "query", query="kvitals_running", timeout="0.2")
            assert (status, kind) == (503, "timeout")
            assert "one query over history runs at a time" in message and "shorter range" in message
            assert past.reading == 1  # the first one still runs
            await first
        assert past.reads == 2  # both by the first one: it begins as a quick one, and takes longer than those may

    async def test_a_quick_one_does_not_wait_for_a_long_one(self) -> None:
        """In the first minutes after a start every query reads history: `up` took 9.7 s beside one long query."""
        past = SlowPast(0.0)
        deep = "max_over_time(" * 20 + "kvitals_running" + "[30m:1s])" * 20
        async with serving(past=past, whole_since=lambda _: NOW) as client:
            asked = {"query": deep, "time": str(NOW), "timeout": "5"}  # it takes as long as it may
            long = asyncio.create_task(client.get("/api/v1/query", params=asked))
            await asyncio.sleep(1.0)
            for _ in range(3):
                begun = time.monotonic()
                assert (await data_of(client, "query", query="kvitals_running"))["result"]
                assert time.monotonic() - begun < 1.0  # 0.01 s where nothing else runs
                assert not long.done()
            assert (await long).status == 503

    @staticmethod
    def reads_in_memory() -> int:
        return sum(type(one) is SeriesReader for one in gc.get_objects())

    async def test_what_waits_holds_nothing_that_it_has_read(self) -> None:
        """The traceback of a query that turned out to read history kept its frames: 40 held 300 MB."""
        past = SlowPast(1.0)
        gc.collect()  # other tests leave some
        before = self.reads_in_memory()
        async with serving(past=past, whole_since=lambda _: NOW) as client:
            asked = [asyncio.create_task(data_of(client, "query", query="kvitals_running")) for _ in range(6)]
            assert await asyncio.to_thread(past.begun.wait, 10)
            await asyncio.sleep(0.3)
            assert self.reads_in_memory() - before == past.reading == 1
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def test_queries_over_what_is_in_memory_do_not_wait_for_them(self) -> None:
        past = SlowPast(1.0)
        ends = {"kvitals_ttft_seconds": NOW}
        whole = lambda matchers: ends.get(next((m.value for m in matchers if m.name == "__name__"), ""), 0.0)  # noqa: E731
        async with serving(past=past, whole_since=whole) as client:
            slow = [asyncio.create_task(data_of(client, "query", query="kvitals_ttft_seconds")) for _ in range(4)]
            assert await asyncio.to_thread(past.begun.wait, 10)
            assert (await data_of(client, "query", query="sum(kvitals_running)"))["result"]
            assert past.reads == past.reading == 1
            for one in slow:
                one.cancel()
            await asyncio.gather(*slow, return_exceptions=True)
