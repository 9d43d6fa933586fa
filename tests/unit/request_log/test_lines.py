"""What lines of logs come to: recorded ones of LiteLLM and nginx, made ones of Envoy AI Gateway, and hostile ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.agent.requests.lines import NO_IDENTITY, NOT_A_REQUEST, NOT_JSON, LineReader
from kvitals.agent.requests.observation import RequestPart
from kvitals.agent.requests.tenant_names import TenantNames
from kvitals.config import TenantsTable
from kvitals.rules.log_map import LogMap, formats, shipped_log_map

FIXTURES = Path(__file__).parents[2] / "fixtures" / "request_logs"
TENANTS = TenantNames(TenantsTable(), bytes(32))
SEEN = 1_795_247_000.0


def reader(name: str, *tenant: str) -> LineReader:
    return LineReader(shipped_log_map(name), TENANTS, tenant)


def parts(name: str) -> list[RequestPart | str]:
    one = reader(name)
    found = [one.read(line, SEEN) for line in (FIXTURES / f"{name}.jsonl").read_bytes().splitlines()]
    assert not one.unreadable
    return found


def taken(made: RequestPart | str) -> RequestPart:
    assert isinstance(made, RequestPart)
    return made


def mapped(**said: Any) -> LineReader:
    log = {"system": "mine", "title": "Mine", "fields": {"start": "t"}} | said
    return LineReader(msgspec.convert(log, LogMap), TENANTS)


def read(one: LineReader, **data: Any) -> RequestPart:
    return taken(one.read(json.dumps({"t": SEEN} | data).encode(), SEEN))


def test_nginx() -> None:
    whole, retried, left, left_early, busy, *_, health = parts("nginx")
    assert health == NOT_A_REQUEST
    first = taken(whole)
    assert first.ids == ("request:ff78ce4c7412b8a2ea6f7419a1f6c5f8", "trace:4bf92f3577b34da6a3ce929d0e0e4736")
    assert (first.end, first.status, first.aborted) == (1795246949.836, 200, False)
    assert first.start == pytest.approx(1795246949.534)
    assert (first.observer, first.system, first.engine) == ("gateway", "nginx", "127.0.0.1:18999")
    assert first.tenant == TENANTS.pseudonym("acme") == taken(retried).tenant
    assert first.session == TENANTS.session("conv-1")
    assert taken(retried).engine == "127.0.0.1:18999"  # the one that answered
    assert [(taken(p).status, taken(p).aborted) for p in (left, left_early)] == [(200, True), (499, True)]
    assert (taken(busy).status, taken(busy).tenant) == (429, "")
    assert all(taken(p).ttft is None and taken(p).output_tokens is None for p in (whole, retried))


def test_litellm() -> None:
    whole, streamed, failed = map(taken, parts("litellm"))
    assert whole.ids[1:] == ("request:77aa01", "response:chatcmpl-77aa01")
    assert (whole.ttft, whole.stream, whole.finish, whole.status) == (None, None, "stop", 200)
    assert whole.phases == {"gateway": pytest.approx(0.3209591)}
    assert (whole.prompt_tokens, whole.cached_tokens, whole.output_tokens) == (12, 8, 3)
    assert (whole.model, whole.engine) == ("llama", "127.0.0.1:18999")
    assert whole.tenant == TENANTS.pseudonym("team-1")
    assert streamed.ttft == pytest.approx(1795246957.433138 - 1795246956.894)
    assert (streamed.stream, streamed.finish) == (True, "length")
    assert (failed.status, failed.error) == (429, "RateLimitError")
    assert failed.prompt_tokens is failed.output_tokens is None  # the payload says 0
    assert failed.ids == ("request:503b3fb7-2fc6-41d4-afdb-5a3b88a4345c",)


def test_a_row_of_litellms_spend_log() -> None:
    """By the schema of LiteLLM 1.106.2; the row was made."""
    row = {
        "request_id": "chatcmpl-77aa01",
        "call_type": "acompletion",
        "api_key": "88dc28d0f030c55ed4ab77ed8faf098196cb1c05df778539800c9f1243fe6b4b",
        "startTime": "2026-11-21T07:42:36.243000",
        "endTime": "2026-11-21T07:42:36.869000Z",
        "completionStartTime": "2026-11-21T07:42:36.500000Z",
        "prompt_tokens": 12,
        "completion_tokens": 3,
        "model": "llama",
        "api_base": "https://user:secret@gpu-7:8443/v1",
        "team_id": None,
        "end_user": "",
        "status": "success",
        "metadata": {"user_api_key_user_id": "default_user_id"},
        "messages": {},
    }
    part = taken(reader("litellm").read(json.dumps(row).encode(), SEEN))
    assert part.start == pytest.approx(1795246956.243) and part.end == pytest.approx(1795246956.869)
    assert part.ids == ("request:77aa01", "response:chatcmpl-77aa01")
    assert (part.engine, part.prompt_tokens, part.ttft) == ("gpu-7:8443", 12, None)
    assert part.tenant == TENANTS.of_key(row["api_key"])


def test_envoy_ai_gateway() -> None:
    """Lines in the format that the documentation has, with values as Envoy types them; no gateway was run."""
    line: dict[str, Any] = {
        "start_time": "2026-11-21T07:42:36.243Z",
        "method": "POST",
        "path": "/v1/chat/completions?x=1",
        "response_code": 200,
        "duration": 1500,
        "response_flags": "-",
        "upstream_host": "10.0.0.7:8000",
        "x-request-id": "0a1b2c3d",
        "traceparent": None,
        "gen_ai.request.model": "llama",
        "gen_ai.response.model": "-",
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.cached_input_tokens": "-",
        "gen_ai.usage.output_tokens": "3",
        "token_latency_ttft": 250.5,
        "token_latency_itl": None,
        "x-tenant-id": "acme",
        "session.id": "-",
    }

    def part(**other: Any) -> RequestPart:
        return taken(reader("envoy_ai_gateway").read(json.dumps(line | other).encode(), SEEN))

    whole = part()
    assert (whole.ttft, whole.itl, whole.model, whole.engine) == (0.2505, None, "llama", "10.0.0.7:8000")
    assert whole.start is not None and whole.end == pytest.approx(whole.start + 1.5)
    assert (whole.prompt_tokens, whole.cached_tokens, whole.output_tokens) == (12, None, 3)
    assert (whole.aborted, whole.error, whole.session) == (False, "", "")
    assert whole.tenant == TENANTS.pseudonym("acme")
    left = part(response_flags="DC", response_code=0)
    assert (left.aborted, left.error, left.status) == (True, "", None)
    assert (part(response_flags="UF,URX").error, part(response_flags="UF,URX").aborted) == ("UF,URX", False)


@pytest.mark.parametrize("name", ["litellm", "nginx"])
def test_nothing_but_the_mapped_fields_is_kept(name: str) -> None:
    kept = msgspec.json.encode([p for p in parts(name) if isinstance(p, RequestPart)]).decode()
    for secret in ("SECRET", "acme", "bolt", "team-1", "conv-1", "88dc28d0", "Traceback", "chat/completions"):
        assert secret not in kept


@pytest.mark.parametrize("text", ["please tell me a story", "a\nb", "x" * 300, "ä" * 3])
def test_text_where_a_word_should_be_is_not_taken(text: str) -> None:
    one = mapped(
        fields={"start": "t", "model": "m", "finish": "m", "error": "m", "engine": "m", "role": "m", "status": "m"},
        ids={"request": "m", "trace": "m"},
    )
    part = read(one, m=text)
    assert part == RequestPart(observer="gateway", system="mine", seen=SEEN, start=SEEN)
    assert set(one.unreadable) == {"model", "finish", "error", "engine", "role", "status", "ids.request", "ids.trace"}


@pytest.mark.parametrize(
    ("field", "raw", "made"),
    [
        ("prompt_tokens", 12, 12),
        ("prompt_tokens", "12", 12),
        ("prompt_tokens", 12.0, 12),
        ("prompt_tokens", 12.5, None),
        ("prompt_tokens", -1, None),
        ("prompt_tokens", True, None),
        ("prompt_tokens", 10**10, None),
        ("prompt_tokens", "many", None),
        ("ttft", 0.25, 0.25),
        ("ttft", "NaN", None),
        ("ttft", "1e400", None),
        ("ttft", -0.1, None),
        ("ttft", 10**7, None),
        ("ttft", [1], None),
        ("status", "200", 200),
        ("status", 20, None),
        ("stream", True, True),
        ("stream", "FALSE", False),
        ("stream", "yes", None),
        ("role", "prefill", "prefill"),
    ],
)
def test_values_are_of_their_field_or_none(field: str, raw: object, made: object) -> None:
    part = read(mapped(fields={"start": "t", field: "x"}), x=raw)
    assert getattr(part, field) == (
        made if made is not None else getattr(RequestPart(observer="tap", system="", seen=0), field)
    )


@pytest.mark.parametrize(
    ("raw", "unit", "at"),
    [
        (1_795_247_000, "s", SEEN),
        ("1795247000.5", "s", SEEN + 0.5),
        (1_795_247_000_250, "ms", SEEN + 0.25),
        (1_795_247_000_250_000, "us", SEEN + 0.25),
        (1_795_247_000_250_000_000, "ns", SEEN + 0.25),
        ("2026-11-21T07:43:20Z", "s", SEEN),
        ("2026-11-21 08:43:20+01:00", "s", SEEN),
        ("2026-11-21T07:43:20.250000000Z", "s", SEEN + 0.25),
        ("2026-11-21T07:43:20", "s", SEEN),
        (1_795_247_000_250, "s", None),
        (1_795_247_000, "ms", None),
        ("21/Nov/2026:07:43:20 +0000", "s", None),
        ("9999-12-31T23:59:59-23:59", "s", None),
    ],
)
def test_times(raw: object, unit: str, at: float | None) -> None:
    one = mapped(fields={"start": {"key": "at", "unit": unit}}, ids={"request": "id"})
    part = taken(one.read(json.dumps({"at": raw, "id": "rq-1"}).encode(), SEEN))
    assert part.start == (None if at is None else pytest.approx(at, abs=1e-4))
    assert one.unreadable["start"] == (at is None)


def test_durations_complete_times_and_nonsense_does_not() -> None:
    one = mapped(fields={"start": "s", "end": "e", "duration": "d", "first_token": "f"}, ids={"request": "id"})

    def made(**data: Any) -> tuple[float | None, float | None, float | None]:
        part = read(one, id="rq-1", **data)
        return part.start, part.end, part.ttft

    assert made(s=SEEN, d=2) == (SEEN, SEEN + 2, None)
    assert made(e=SEEN, d=2) == (SEEN - 2, SEEN, None)
    assert made(s=SEEN, e=SEEN + 3, d=2, f=SEEN + 1) == (SEEN, SEEN + 3, 1)
    assert made(s=SEEN, e=SEEN - 1, f=SEEN) == (None, None, None)
    assert made(s=SEEN, f=SEEN - 1) == (SEEN, None, None)
    assert made(d=1) == (None, None, None)
    assert one.unreadable == {"end": 1, "first_token": 1}


COUNTS = {"prompt_tokens": "p", "cached_tokens": "c", "external_tokens": "x", "output_tokens": "o"}


def test_a_part_of_the_prompt_is_no_more_than_the_prompt() -> None:
    """A log with more cached than prompt tokens was stored as it was, and 200 % of the prompt were cached."""
    one = mapped(fields={"start": "t", **COUNTS})
    part = read(one, p=100, c=200, x=101, o=5)
    assert (part.prompt_tokens, part.cached_tokens, part.external_tokens, part.output_tokens) == (100, None, None, 5)
    assert one.unreadable == {"cached_tokens": 1, "external_tokens": 1}
    part = read(one, p=100, c=100, x=100)
    assert (part.cached_tokens, part.external_tokens) == (100, 100)
    assert read(one, c=200).cached_tokens == 200  # of how many is not known
    assert one.unreadable.total() == 2


@pytest.mark.parametrize("raw", [-1, -0.5, 1.5, True, False, "NaN", "inf", "-Infinity", 10**12, "1e400", [1], {"a": 1}])
def test_a_number_that_cannot_be_is_left_out(raw: object) -> None:
    one = mapped(fields={"start": "t", **COUNTS, "ttft": "f"}, phases={"queue": "q"})
    part = read(one, p=raw, c=raw, x=raw, o=raw, f=raw if raw != 1.5 else -1.5, q=raw if raw != 1.5 else -1.5)
    assert (part.prompt_tokens, part.cached_tokens, part.external_tokens, part.output_tokens) == (None,) * 4
    assert (part.ttft, part.phases) == (None, {})
    assert one.unreadable.total() == (0 if isinstance(raw, list | dict) else 6)


def test_what_took_longer_than_the_request_is_left_out() -> None:
    fields = {"start": "s", "end": "e", "first_token": "f", "itl": "i", "itl_max": "m"}
    one = mapped(fields=fields, phases={"queue": "q", "decode": "d"}, ids={"request": "id"})
    start = SEEN + 0.25
    part = read(one, id="rq-1", s=start, e=start + 2.5, f=start + 3, i=9, m=9, q=9, d=2)
    assert (part.ttft, part.itl, part.itl_max, part.phases) == (None, None, None, {"decode": 2})
    assert one.unreadable == {"ttft": 1, "itl": 1, "itl_max": 1, "phases.queue": 1}
    assert read(one, id="rq-1", s=start, e=start + 2.5, f=start + 2.501).ttft == pytest.approx(2.501)  # rounded
    assert read(one, id="rq-1", s=SEEN, e=SEEN + 2, f=SEEN + 2.9).ttft == pytest.approx(2.9)  # to whole seconds


def test_times_that_cannot_be_are_left_out() -> None:
    one = mapped(fields={"start": "s", "end": "e", "first_token": "f", "ttft": "x"}, ids={"request": "id"})
    ahead = SEEN + 7200
    part = read(one, id="rq-1", s=ahead, e=ahead + 1, f=ahead)
    assert (part.start, part.end, part.ttft) == (None, None, None)
    assert one.unreadable == {"start": 1, "end": 1, "first_token": 1}
    part = read(one, id="rq-1", s=SEEN - 90 * 86400, e=SEEN)  # a request does not take a quarter of a year
    assert (part.start, part.end) == (None, None)
    assert taken(one.read(json.dumps({"id": "rq-1", "s": SEEN - 7 * 86400}).encode(), SEEN)).start is not None


def test_a_flag_is_no_id() -> None:
    """All requests of the log were one: `True`."""
    one = mapped(ids={"request": "id"})
    assert read(one, id=True).ids == ()
    assert one.unreadable == {"ids.request": 1}


def test_keys_with_dots_and_lists() -> None:
    one = mapped(fields={"start": "t", "model": "a.b.0.c.d"})
    assert read(one, **{"a.b.0.c.d": "m"}).model == "m"
    assert read(one, a={"b": [{"c": {"d": "m"}}]}).model == "m"
    assert read(one, a={"b": [{"c.d": "m"}]}).model == "m"
    for other in ({"a": None}, {"a": {"b": []}}, {"a": {"b": [{"c": "d"}]}}, {"a": {"b": {"d": 1}}}):
        assert read(one, **other).model == ""


def test_the_first_value_that_can_be_read_counts() -> None:
    one = mapped(fields={"start": "t", "output_tokens": ["a", {"key": "b", "when": {"kind": ["x*"]}}, "c"]})
    assert [read(one, a="-", b=2, c=3, kind=kind).output_tokens for kind in ("xy", "y")] == [2, 3]
    assert read(one, a="many", c=3).output_tokens == 3
    assert one.unreadable == {"output_tokens": 1}


def test_another_key_for_the_tenant() -> None:
    line = (FIXTURES / "litellm.jsonl").read_bytes().splitlines()[0]
    assert taken(reader("litellm", "nowhere", "end_user").read(line, SEEN)).tenant == TENANTS.pseudonym("acme")
    assert taken(reader("litellm", "metadata.user_api_key_hash").read(line, SEEN)).tenant.startswith("k-")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b"\xff\xfe",
        b"2026/11/21 error: it broke",
        b'{"a":' * 5000,
        b"[" * 100_000,
        b"\0" * 100,
    ],
)
def test_garbage(line: bytes) -> None:
    assert reader("nginx").read(line, SEEN) == NOT_JSON


def test_what_has_no_time_and_no_id_is_nobody_s() -> None:
    one = mapped(fields={"end": "t"}, ids={"request": "id"})
    assert one.read(b'{"id": "-"}', SEEN) == one.read(b'{"id": "1"}', SEEN) == NO_IDENTITY
    assert taken(one.read(b'{"id": "rq-1"}', SEEN)).ids == ("request:rq-1",)


def test_what_runtimes_put_around_lines() -> None:
    inner = b'{"t": 1795247000}'
    one = mapped()
    docker = json.dumps({"log": inner.decode() + "\n", "stream": "stdout", "time": "2026-11-21T07:43:20.1Z"}).encode()
    for line in (
        b"2026-11-21T07:43:20.123456789Z stdout F " + inner,
        b"2026-11-21T07:43:20.123456789+00:00 stderr F " + inner + b"\r",
        docker,
        b"\0\0\0\0" + inner,
    ):
        assert taken(one.read(line, SEEN)).start == SEEN
    assert one.read(b"2026-11-21T07:43:20.123456789Z stdout P " + inner[:9], SEEN) == NOT_JSON


def test_bytes_that_are_no_utf8() -> None:
    one = mapped(tenant="who")
    part = taken(one.read(b'{"t": 1795247000, "who": "caf\xe9"}', SEEN))
    assert part.tenant.startswith("t-") and part.start == SEEN


@given(
    st.dictionaries(
        st.sampled_from(["t", "who", "m", "n", "a"]),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=5,
        ),
    ),
    st.sampled_from(formats()),
)
def test_no_line_breaks_a_reader(data: dict[str, Any], name: str) -> None:
    fields = dict.fromkeys(
        ("start", "end", "duration", "first_token", "itl", "model", "status", "stream", "aborted"), "n"
    )
    own = mapped(fields=fields, ids={"request": "a", "trace": "a"}, tenant="who", session="m", phases={"queue": "n"})
    renamed = {key.replace("t", "start_time"): value for key, value in data.items()} | {
        "method": "POST",
        "uri": "/completions",
    }
    for line in (data, renamed):
        encoded = json.dumps(line).encode()
        for one in (own, reader(name)):
            made = one.read(encoded, SEEN)
            assert isinstance(made, str) or msgspec.json.decode(msgspec.json.encode(made), type=RequestPart) == made
