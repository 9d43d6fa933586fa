"""What the API answers, and what it refuses."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvitals.agent.exports import api, series_reader
from kvitals.agent.exports.browsers import is_cross_site
from kvitals.agent.exports.host_names import allowed_hosts
from kvitals.series.promql import PromQLError, QueryLimitError, QueryLimits
from kvitals.series.types import Frame, Labels, Matcher
from tests.support.turns import watched_turns
from tests.unit.exports.api_stage import FORM, NOW, WIDE, Client, data_of, error_of, serving, window


class TestQueries:
    async def test_instant_is_now_by_default(self, client: Client) -> None:
        data = await data_of(client, "query", query='kvitals_running{engine="a"}')
        metric = {"__name__": "kvitals_running", "engine": "a"}
        assert data == {"resultType": "vector", "result": [{"metric": metric, "value": [1000100, "10"]}]}

    async def test_range(self, client: Client) -> None:
        data = await data_of(
            client,
            "query_range",
            query="sum(kvitals_running)",
            start=str(NOW - 20),
            end=str(NOW),
            step="10s",
        )
        values = [[1000080, "24"], [1000090, "27"], [1000100, "30"]]
        assert data == {"resultType": "matrix", "result": [{"metric": {}, "values": values}]}

    async def test_a_form_comes_before_the_query_string(self, client: Client) -> None:
        async with client.post("/api/v1/query?query=2&time=7", data="query=1", headers=FORM) as answer:
            assert (await answer.json())["data"]["result"] == [7, "1"]

    async def test_what_grafana_asks_of_labels(self, client: Client) -> None:
        span = {"start": str(NOW - 60), "end": str(NOW)}
        assert await data_of(client, "labels", **span) == ["__name__", "engine"]
        assert await data_of(client, "label/engine/values", **span) == ["a", "b"]
        assert await data_of(client, "label/engine/values", limit="1") == ["a"]
        picked = {"match[]": 'kvitals_running{engine="b"}'}
        assert await data_of(client, "label/engine/values", **picked) == ["b"]
        assert await data_of(client, "series", **picked) == [{"__name__": "kvitals_running", "engine": "b"}]
        assert await data_of(client, "labels", end="5") == []

    async def test_metadata(self, client: Client) -> None:
        running = {"kvitals_running": [{"type": "gauge", "help": "Running requests.", "unit": ""}]}
        data = await data_of(client, "metadata")
        assert {name: entry[0]["type"] for name, entry in data.items()} == {
            "kvitals_engine_info": "gauge",
            "kvitals_running": "gauge",
            "kvitals_ttft_seconds": "histogram",
        }
        assert await data_of(client, "metadata", metric="kvitals_running") == running
        assert len(await data_of(client, "metadata", limit="1")) == 1

    async def test_errors(self, client: Client) -> None:
        assert (await error_of(client, "query", query="x{"))[:2] == (400, "bad_data")
        status, kind, text = await error_of(client, "query", query="kvitals_running[5m:1m]")
        assert (status, kind) == (422, "execution") and "subquery" in text

    async def test_a_query_that_is_too_long(self, client: Client) -> None:
        async with client.post("/api/v1/query", data={"query": "x" * 17_000}) as answer:
            assert (answer.status, (await answer.json())["errorType"]) == (400, "bad_data")

    async def test_a_step_of_nothing(self, client: Client) -> None:
        span = {"query": "1", "start": "0", "end": "1"}
        assert (await error_of(client, "query_range", **span, step="0.0001"))[:2] == (400, "bad_data")

    async def test_a_large_answer(self, client: Client) -> None:
        span = {"start": "0", "end": "10000", "step": "1"}
        for headers in ({}, {"Accept-Encoding": "gzip"}):
            query_range = "/api/v1/query_range"
            async with client.get(query_range, params=span | {"query": WIDE}, headers=headers) as answer:
                assert len((await answer.json())["data"]["result"]) == 8


class TestLimits:
    async def test_selectors(self, client: Client) -> None:
        async def post(number: int) -> tuple[int, str]:
            form = "&".join(["match[]=kvitals_running"] * number)
            async with client.post("/api/v1/series", data=form, headers=FORM) as answer:
                return answer.status, await answer.text()

        status, text = await post(api.MAX_SELECTORS + 1)
        assert status == 400 and "51 selectors, 50 are allowed" in text
        assert (await post(api.MAX_SELECTORS))[0] == 200

    async def test_samples(self) -> None:
        async with serving(limits=QueryLimits(samples=10, series=10, seconds=10)) as client:
            for query in ("rate(kvitals_running[5m])", "kvitals_running[5m]"):
                status, kind, text = await error_of(client, "query", query=query)
                assert (status, kind) == (422, "execution") and "too many samples" in text

    async def test_time(self) -> None:
        class Slow:
            def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
                time.sleep(0.03)
                return window().select(matchers, start, end)

        async with serving(Slow()) as client:
            asked = {"query": "kvitals_running + kvitals_running", "timeout": "10ms"}
            assert (await error_of(client, "query", **asked))[:2] == (503, "timeout")
            for wrong in ("-1", "0", "0s", "-5"):
                asked = {"query": "up", "timeout": wrong}
                found = await error_of(client, "query", **asked)
                assert found[:2] == (400, "bad_data") and "timeout" in found[2], wrong
            assert await data_of(client, "query", query="kvitals_running + kvitals_running")

    async def test_a_loop_that_does_not_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Stuck:
            def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
                time.sleep(0.2)
                return []

        monkeypatch.setattr(series_reader, "SELECT_SECONDS", 0.05)
        async with serving(Stuck()) as client:
            assert (await error_of(client, "query", query="x"))[:2] == (503, "timeout")

    async def test_waiting_queries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Slow:
            def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
                time.sleep(0.05)
                return []

        monkeypatch.setattr(api, "MAX_WAITING_EACH", 1)
        async with serving(Slow()) as client:
            answers = await asyncio.gather(*(client.get("/api/v1/query", params={"query": "x"}) for _ in range(8)))
            assert sorted({answer.status for answer in answers}) == [200, 503]
            refused = next(answer for answer in answers if answer.status == 503)
            assert (await refused.json())["errorType"] == "unavailable"
            assert (await client.get("/api/v1/query", params={"query": "1"})).status == 200

    async def test_bodies(self, client: Client) -> None:
        async with client.post("/api/v1/query", data=BytesIO(bytes(2 << 20)), headers=FORM) as answer:
            assert answer.status == 413
        async with client.post("/api/v1/query", data="a=1&" * 2000, headers=FORM) as answer:
            assert (answer.status, (await answer.json())["errorType"]) == (400, "bad_data")

    @pytest.mark.parametrize(
        "body",
        [b"query=" + b"%" * 1_000_000, b"query=" + b"%41" * 300_000, b"query=" + "é%41".encode() * 200_000],
        ids=["percent signs", "escapes", "escapes among others"],
    )
    async def test_a_large_form_leaves_the_loop_to_others(self, client: Client, body: bytes) -> None:
        with watched_turns() as turns:
            async with client.post("/api/v1/query", data=BytesIO(body), headers=FORM) as answer:
                assert answer.status in (400, 422)
        assert turns.longest < 0.1  # on the loop it is 0.15 s and more

    @pytest.mark.parametrize("charset", ["punycode", "idna", "utf-7"])
    async def test_forms_are_utf_8_whatever_they_say(self, client: Client, charset: str) -> None:
        headers = {"Content-Type": f"application/x-www-form-urlencoded; charset={charset}"}
        used = time.process_time()
        async with client.post(
            "/api/v1/query", data=b"query=" + b"q" * 100_000 + b"-" + b"a" * 100_000, headers=headers
        ):
            pass
        assert time.process_time() - used < 1  # Python's punycode takes 2 s
        async with client.post("/api/v1/query", data="query=1%2B1", headers=headers) as answer:
            assert (await answer.json())["data"]["result"][1] == "2"

    @pytest.mark.parametrize("charset", ["nonsense", "utf-8"])
    async def test_undecodable_bodies(self, client: Client, charset: str) -> None:
        headers = {"Content-Type": f"application/x-www-form-urlencoded; charset={charset}"}
        async with client.post("/api/v1/query", data=b"query=\xff\xfe", headers=headers) as answer:
            assert (answer.status, (await answer.json())["errorType"]) == (400, "bad_data")


class TestTheRest:
    async def test_findings(self, client: Client) -> None:
        async with client.get("/api/v1/findings") as answer:
            assert answer.content_type == "application/json"
            assert await answer.json() == {"healthy": True}

    async def test_no_findings_yet(self) -> None:
        async with serving(findings=lambda: None) as client:
            assert (await error_of(client, "findings"))[:2] == (503, "unavailable")

    @pytest.mark.parametrize("path", ["findings", "rules", "alerts"])
    @pytest.mark.parametrize(
        ("error", "status", "kind"), [(QueryLimitError("x"), 503, "timeout"), (PromQLError("x"), 422, "execution")]
    )
    async def test_findings_that_can_not_be_judged_say_why(
        self, path: str, error: PromQLError, status: int, kind: str
    ) -> None:
        """A limit may not be met the next time; series that do not fit an expression stay as they are."""

        def judge() -> Any:
            raise error

        async with serving(findings=judge, rules=judge) as client:
            assert await error_of(client, path) == (status, kind, "not judged this time: x")

    async def test_metrics(self, client: Client) -> None:
        async with client.get("/metrics") as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            (family,) = text_string_to_metric_families(await answer.text())
            assert [sample.value for sample in family.samples] == [10, 20]

    async def test_ready_and_healthy(self) -> None:
        states = iter([False, True])
        async with serving(ready=lambda: next(states)) as client:
            for path, status in (("/-/ready", 503), ("/-/ready", 200), ("/-/healthy", 200)):
                async with client.get(path) as answer:
                    assert answer.status == status
                    assert (await answer.text()).startswith("kvitals is ")

    async def test_the_version(self) -> None:
        async with serving(version="0.1.0") as client:
            info = await data_of(client, "status/buildinfo")
            assert (info["version"], info["revision"]) == ("2.42.0", "kvitals 0.1.0")

    async def test_answers_are_compressed_when_asked(self, client: Client) -> None:
        async with client.get("/api/v1/metadata", headers={"Accept-Encoding": "gzip"}, auto_decompress=False) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            assert json.loads(gzip.decompress(await answer.read()))["status"] == "success"

    async def test_nothing_can_be_changed_and_no_other_site_can_read(self, client: Client) -> None:
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
            async with client.request(method, "/api/v1/query?query=1") as answer:
                assert answer.status == 405
        async with client.get("/api/v1/query?query=1", headers={"Origin": "http://evil.example"}) as answer:
            assert not [name for name in answer.headers if name.lower().startswith("access-control")]


class TestBrowsers:
    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({}, 200),
            ({"Sec-Fetch-Site": "none"}, 200),
            ({"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost:9477"}, 200),
            ({"Origin": "HTTP://LOCALHOST:9477"}, 200),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
            ({"Sec-Fetch-Site": "same-site"}, 403),
            ({"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost:9477"}, 403),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "http://localhost:3000"}, 403),
            ({"Origin": "https://localhost:9477"}, 403),
            ({"Origin": "null"}, 403),
            ({"Origin": ""}, 403),
        ],
    )
    @pytest.mark.parametrize("method", ["GET", "POST"])
    async def test_pages_of_other_sites_are_refused(
        self, client: Client, method: str, headers: dict[str, str], status: int
    ) -> None:
        named = {"Host": "localhost:9477", **headers}
        async with client.request(method, "/api/v1/query?query=1", headers=named) as answer:
            assert answer.status == status
            if status == 403:
                assert "another site" in await answer.text()

    @pytest.mark.parametrize("path", ["/metrics", "/-/healthy", "/api/v1/findings", "/nowhere"])
    async def test_on_every_path(self, client: Client, path: str) -> None:
        async with client.get(path, headers={"Sec-Fetch-Site": "cross-site"}) as answer:
            assert answer.status == 403

    def test_ports_that_a_scheme_implies(self) -> None:
        assert not is_cross_site([], ["http://kv"], "http://kv:80")
        assert not is_cross_site([], ["https://kv:443"], "https://kv")
        assert is_cross_site([], ["http://kv:443"], "http://kv")

    @pytest.mark.parametrize(
        ("name", "own", "other"),
        [("Sec-Fetch-Site", "none", "cross-site"), ("Origin", "http://localhost:9477", "https://evil.example")],
    )
    async def test_each_of_several_headers_of_one_name_must_pass(
        self, client: Client, name: str, own: str, other: str
    ) -> None:
        for values, status in (((own, own), 200), ((own, other), 403), ((other, own), 403)):
            headers = [("Host", "localhost:9477"), *((name, value) for value in values)]
            async with client.get("/api/v1/query?query=1", headers=headers) as answer:
                assert answer.status == status


class TestHosts:
    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("localhost:9477", 200),
            ("LOCALHOST", 200),
            ("127.0.0.1:9477", 200),
            ("[::1]:9477", 200),
            ("kvitals.internal:80", 200),
            ("evil.example", 403),
            ("evil.example:9477", 403),
            ("127.0.0.1.evil.example", 403),
            ("localhost.", 403),
            ("", 403),
            ("[::1%25evil.example]:9477", 403),
            ("[fe80::1%evil.example]", 403),
        ],
    )
    async def test_on_loopback(self, host: str, status: int) -> None:
        hosts = allowed_hosts("127.0.0.1", ["Kvitals.internal"])
        async with (
            serving(hosts=hosts) as client,
            client.get("/-/healthy", headers={"Host": host}) as answer,
        ):
            assert answer.status == status
            if status == 403:
                assert "`hosts` of [agent]" in await answer.text()

    @pytest.mark.parametrize(
        ("target", "host", "status"),
        [
            ("http://localhost:9477/-/healthy", "localhost", b"200"),
            ("http://evil.example/-/healthy", "localhost", b"403"),
            ("http://localhost/-/healthy", "evil.example", b"403"),
            ("http://me@evil.example:9477/-/healthy", "127.0.0.1", b"403"),
        ],
    )
    async def test_the_host_of_an_absolute_address_counts_as_well(self, target: str, host: str, status: bytes) -> None:
        async with serving(hosts=allowed_hosts("127.0.0.1")) as client:
            reader, writer = await asyncio.open_connection(client.host, client.port)
            writer.write(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            assert (await reader.readline()).split()[1] == status
            writer.close()

    async def test_names_are_refused_by_default(self, client: Client) -> None:
        for host, status in (("evil.example", 403), ("localhost", 200)):
            async with client.get("/-/healthy", headers={"Host": host}) as answer:
                assert answer.status == status

    async def test_elsewhere_every_name_is_good(self) -> None:
        async with (
            serving(hosts=allowed_hosts("0.0.0.0")) as client,
            client.get("/-/healthy", headers={"Host": "gpu-7"}) as answer,
        ):
            assert answer.status == 200

    @pytest.mark.parametrize(
        ("address", "guarded"),
        [("127.0.0.1", True), ("::1", True), ("localhost", True), ("", False), ("10.0.0.1", False)],
    )
    def test_where_names_matter(self, address: str, guarded: bool) -> None:
        assert (allowed_hosts(address) is not None) == guarded


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/nothing", 404, "GET / lists its paths"),
        ("GET", "/api/v1/history", 404, "GET / lists its paths"),
        ("GET", "/api/v1/since-change", 404, "keeps no history"),
        ("DELETE", "/api/v1/findings", 405, "it accepts GET, HEAD"),
    ],
)
async def test_a_path_that_is_not_there_is_an_error_of_the_api(
    method: str, path: str, status: int, message: str
) -> None:
    async with serving() as client:
        answer = await client.request(method, path)
        said = await answer.json()
        assert (answer.status, said["status"], said["errorType"]) == (status, "error", "not_found")
        assert message in said["error"]


async def test_the_root_lists_the_paths() -> None:
    async with serving(version="1.2") as client:
        said = (await (await client.get("/")).json())["data"]
        assert said["version"] == "1.2"
        assert {"/metrics", "/api/v1/findings", "/-/healthy"} <= set(said["paths"])
        page = await client.get("/", headers={"Accept": "text/html"})
        assert page.content_type == "text/html"
        assert '<a href="/api/v1/findings">' in await page.text()


async def test_up_is_that_of_the_targets() -> None:
    """A Prometheus has `up` for each target: it is the first query that people and programs send."""
    made = window()
    group = made.group("up")
    column = group.column(Labels({"__name__": "kvitals_target_up", "engine": "a"}))
    assert column is not None
    group.append(NOW, [column], [1.0])
    async with serving(made) as client:
        (row,) = (await data_of(client, "query", query="up"))["result"]
        assert (row["metric"]["engine"], row["value"][1]) == ("a", "1")
        assert (await data_of(client, "query", query='count(up{engine="a"} == 1)'))["result"][0]["value"][1] == "1"
        assert (await data_of(client, "query", query="max_over_time(up[1m])"))["result"][0]["value"][1] == "1"
        assert await data_of(client, "series", **{"match[]": "up"})
