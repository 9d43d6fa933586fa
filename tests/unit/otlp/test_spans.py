"""Recorded spans of real servers become parts that say what the spans say, and nothing that users wrote."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from span_fixtures import NAMES, Plain, ended, lines, parts_of, protobuf, read, request, span

from kvitals.agent.collectors import otlp_json, otlp_wire
from kvitals.agent.requests.observation import PHASES, Observer, RequestPart
from kvitals.agent.requests.spans import DETAIL, NO_IDS, NOT_OURS, TIME, SpanReader, unwrap_id
from kvitals.rules import span_map
from kvitals.rules.span_map import SpanKind, Wrap, load_span_maps

NOW = 1001.0


def parts_from(
    said: dict[str, Any], tenants: tuple[str, ...] = ("tenant.id",)
) -> tuple[list[RequestPart], Counter[str]]:
    return read([protobuf(said)], NOW, SpanReader(Plain(), tenants))


def part(made: dict[str, Any], scope: str = "", **resource: Any) -> RequestPart:
    said = request(made, scope=scope, resource={k.replace("__", "."): v for k, v in resource.items()})
    (one,), _ = parts_from(said)
    return one


def dropped(made: dict[str, Any], scope: str = "") -> str:
    none, why = parts_from(request(made, scope=scope))
    assert none == []
    return next(iter(why))


# vLLM


def test_a_request_of_vllm() -> None:
    parts, _ = parts_of("vllm-0.32")
    first = parts[0]
    assert first.ids == ("trace:0af7651916cd43dd8448eb211c80319c", "request:rq-1", "response:chatcmpl-rq-1")
    assert (first.observer, first.system, first.name) == ("engine", "vllm", "llm_request")
    assert first.parent == "b7ad6b7169203331"
    assert first.phases == pytest.approx({"queue": 5.6695e-05, "prefill": 0.208432638, "decode": 0.213943109})
    assert first.ttft == pytest.approx(0.231954336)
    assert (first.prompt_tokens, first.output_tokens) == (137, 16)
    assert first.cached_tokens is None  # it is not on the span, and unknown is not 0
    assert first.start == pytest.approx(1795225261.790527)
    assert first.end is not None and first.start is not None
    assert first.end - first.start == pytest.approx(0.446064663)


def test_the_start_of_a_server_is_no_request() -> None:
    parts, why = parts_of("vllm-0.32")
    assert len(parts) == 24
    assert why == {NOT_OURS: 22}


def test_choices_and_prompts_of_one_request_share_its_id() -> None:
    parts, _ = parts_of("vllm-0.32-choices")
    ids = Counter(one for part in parts for one in part.ids if one.startswith("request:"))
    assert ids["request:two-choices"] == 2
    assert ids["request:two-prompts"] == 4
    assert {one for part in parts for one in part.ids if one.endswith("two-prompts")} == {
        "request:two-prompts",
        "response:cmpl-two-prompts",
    }


def test_old_vllm_tells_model_and_queue() -> None:
    made = span(
        "llm_request",
        gen_ai__request__id="cmpl-abcdef-0",
        gen_ai__response__model="opt",
        gen_ai__latency__time_in_queue=0.25,
        gen_ai__latency__time_to_first_token=0.5,
        gen_ai__usage__prompt_tokens=7,
    )
    one = part(made, scope="vllm.llm_engine")
    assert (one.model, one.ttft, one.prompt_tokens, one.phases) == ("opt", 0.5, 7, {"queue": 0.25})


def test_numbers_that_can_not_be_are_left_out() -> None:
    """vLLM after a failed KV transfer: one duration negative, another one of hours."""
    reader = SpanReader(Plain(), ())
    made = span(
        "llm_request",
        gen_ai__request__id="chatcmpl-abcdef",
        gen_ai__latency__time_in_queue=-1477.0,
        gen_ai__latency__time_in_model_prefill=1477.2,
        gen_ai__latency__time_in_model_decode=0.5,
        gen_ai__latency__time_to_first_token=float("nan"),
        gen_ai__usage__prompt_tokens=-1,
        gen_ai__usage__completion_tokens=2.5,
    )
    (one,), _ = read([protobuf(request(made))], NOW, reader)
    assert one.phases == {"decode": 0.5}
    assert (one.ttft, one.prompt_tokens, one.output_tokens) == (None, None, None)
    assert reader.implausible == 5


@pytest.mark.parametrize(
    ("resource", "engine"),
    [
        ({"service.name": "unknown_service:python", "vllm.process_id": "14952"}, "pid:14952"),
        ({"service.name": "unknown_service", "process.pid": 7}, "pid:7"),
        ({"service.name": "vllm", "process.pid": 7}, "pid:7"),
        ({"service.name": "vllm-b", "process.pid": 7}, "vllm-b"),
        ({"service.name": "vllm-b", "k8s.pod.name": "pod-7"}, "pod-7"),
        ({"k8s.pod.name": "pod-7", "k8s.namespace.name": "serving"}, "serving/pod-7"),
        ({"service.name": "unknown_service"}, ""),
        ({"k8s.pod.name": "a\nb"}, ""),
        ({}, ""),
    ],
)
def test_what_a_resource_calls_the_engine(resource: dict[str, Any], engine: str) -> None:
    made = span("llm_request", gen_ai__request__id="chatcmpl-abcdef")
    (one,), _ = parts_from(request(made, resource=resource))
    assert one.engine == engine


# SGLang


def test_a_request_of_sglang_and_its_stages() -> None:
    parts, why = parts_of("sglang-0.5.23")
    roots = [one for one in parts if one.name == "request"]
    first = next(one for one in roots if one.prompt_tokens == 275 and one.cached_tokens == 0)
    assert (first.observer, first.role, first.model, first.finish) == ("engine", "unified", "tiny", "length")
    assert {one.cached_tokens for one in roots} >= {0, 274}  # it tells 0, too
    assert first.ttft == pytest.approx(0.096832691)
    assert first.phases == {}  # those of its stages
    trace = first.ids[0]
    stages = {one.name: one.phases for one in parts if one.observer == "stage" and one.ids == (trace,)}
    assert {name: list(phases) for name, phases in stages.items()} == {
        "tokenize": [],
        "api_server_dispatch": [],
        "request_process": [],
        "thread": [],
        "prefill_waiting": ["queue"],
        "prefill_forward": ["prefill"],
        "decode_waiting": ["decode"],
        "decode_forward": ["decode"],
    }
    assert stages["prefill_forward"]["prefill"] == pytest.approx(0.0811, abs=1e-4)
    spans = {one.span for one in parts}
    assert all(one.parent in spans for one in parts if one.observer == "stage" and one.ids == (trace,))
    assert why == {DETAIL: sum(map(_count_of("decode_loop"), lines("sglang-0.5.23")))}


def _count_of(name: str) -> Any:
    return lambda line: line.count(f'"name": "{name}"'.encode())


def test_sides_of_sglang_are_found_by_their_room() -> None:
    attributes = {"rid": "a" * 32, "bootstrap_room": "0x1f"}
    prefill = part(span("prefill Req aaaaaaaa", **attributes), scope="sglang server")
    decode = part(span("decode Req aaaaaaaa", **attributes), scope="sglang server")
    assert (prefill.role, decode.role) == ("prefill", "decode")
    assert "room:31" in prefill.ids
    assert prefill.ids == decode.ids


@pytest.mark.parametrize(
    ("stage", "phase"),
    [
        ("prefill_transfer_kv_cache", "transfer"),
        ("prefill_bootstrap", "kv_wait"),
        ("decode_bootstrap", "kv_wait"),
        ("decode_transferred", "kv_wait"),  # prefill runs meanwhile
        ("prefill_waiting", "queue"),
    ],
)
def test_a_stage_of_sglang_is_its_phase(stage: str, phase: str) -> None:
    assert part(span(stage, seconds=0.25), scope="sglang server").phases == pytest.approx({phase: 0.25})


def test_a_stage_name_of_another_program_is_nothing() -> None:
    assert dropped(span("tokenize"), scope="my-app") == NOT_OURS


# Dynamo


def test_a_request_of_dynamo() -> None:
    parts, why = parts_of("dynamo-1.6.1")
    gateways = [one for one in parts if one.observer == "gateway"]
    assert [one.name for one in gateways] == ["http-request"] * 4
    first = gateways[0]
    assert (first.ttft, first.itl) == (pytest.approx(0.02344), pytest.approx(0.0066))
    assert (first.prompt_tokens, first.output_tokens) == (275, 8)
    assert first.engine == ""  # the frontend is none
    assert "request:req-tion-0" in first.ids
    of_it = [one for one in parts if one.ids[0] == first.ids[0]]
    (worker,) = [one for one in of_it if one.observer == "engine"]
    (router,) = [one for one in of_it if one.observer == "router"]
    assert worker.engine == router.engine == "11274795458852771490"
    assert set(worker.ids) == set(first.ids)
    assert why.keys() == {DETAIL}


def test_sides_of_dynamo() -> None:
    parts, _ = parts_of("dynamo-1.6.1-pd")
    trace = parts[0].ids[0]
    roles = [(one.name, one.role) for one in parts if one.ids[0] == trace and one.observer in ("router", "engine")]
    assert sorted(roles) == [
        ("handle_payload", ""),
        ("handle_payload", "prefill"),
        ("kv_router.route_request", "decode"),
        ("kv_router.route_request", "prefill"),
    ]


def test_a_dynamo_request_that_was_given_up() -> None:
    given_up = {"request_id": "abcdef", "request.outcome": "cancelled"}
    made = span("kv_router.route_request", **given_up)
    assert (part(made).aborted, part(made).error) == (True, "cancelled")


def test_dynamo_answers_about_itself_are_no_requests() -> None:
    assert dropped(span("http-request", target="request_span", uri="/health")) == NOT_OURS


# llm-d, after its source


def test_the_pd_proxy_of_llm_d() -> None:
    made = span(
        "llm_d.pd_proxy.decode",
        **{
            "llm_d.pd_proxy.request_id": "abcdef",
            "llm_d.pd_proxy.decode.target": "10.0.0.2:8000",
            "llm_d.pd_proxy.decode.streaming": True,
            "llm_d.pd_proxy.true_ttft_ms": 250.0,
            "llm_d.pd_proxy.coordinator_overhead_ms": 3.0,
        },
    )
    one = part(made, service__name="llm-d-proxy")
    assert (one.observer, one.role, one.engine, one.stream) == ("stage", "decode", "10.0.0.2:8000", True)
    assert one.ttft is None  # true_ttft_ms ends when the decode side is asked
    assert one.phases == {"gateway": 0.003}
    assert "request:abcdef" in one.ids


def test_the_endpoint_picker_of_llm_d() -> None:
    assert part(span("gateway.request"), scope="llm-d-inference-scheduler/epp/extproc").observer == "router"
    one = part(span("gateway.request_orchestration", target_model="m"), scope="llm-d-inference-scheduler")
    assert (one.phases, one.model) == ({"gateway": 1.0}, "m")
    assert dropped(span("gateway.request"), scope="another gateway") == NOT_OURS
    assert dropped(span("llm_d.epp.scorer.prefix_cache")) == DETAIL


# Gateways and clients


def test_the_envoy_ai_gateway() -> None:
    parts, _ = parts_of("envoy-ai-gateway-c217da8")
    chat, refused, completion, embedding = parts
    assert (chat.model, chat.prompt_tokens, chat.cached_tokens, chat.output_tokens) == (
        "gpt-5-nano-2025-08-07",
        12,
        0,
        100,
    )
    assert chat.ttft == pytest.approx(0.25)  # its event of the first token
    assert refused.error == "error"
    assert completion.ttft is None
    assert embedding.model.startswith("text-embedding")
    assert {one.name for one in parts} == {"llm_call"}


def test_old_and_new_names_of_the_conventions() -> None:
    old = {
        "gen_ai.system": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.usage.prompt_tokens": 5,
        "gen_ai.usage.completion_tokens": 6,
    }
    new = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.response.id": "chatcmpl-abcdef",
        "gen_ai.response.finish_reasons": ["stop", "length"],
    }
    for attributes in (old, new, old | new | {"gen_ai.usage.prompt_tokens": 99}):
        one = part(span("chat m", **attributes))
        assert (one.observer, one.name, one.model) == ("gateway", "llm_call", "m")
        assert (one.prompt_tokens, one.output_tokens) == (5, 6)
    assert one.finish == "stop"
    assert "response:chatcmpl-abcdef" in one.ids


def test_agents_and_tools_are_no_requests() -> None:
    for operation in ("invoke_agent", "execute_tool", "create_agent"):
        made = span("agent", **{"gen_ai.operation.name": operation, "gen_ai.request.model": "m", "gen_ai.system": "x"})
        assert dropped(made) == DETAIL
    assert dropped(span("retriever", **{"openinference.span.kind": "CHAIN", "input.value": "text"})) == DETAIL


def test_envoy() -> None:
    attributes = {
        "component": "proxy",
        "guid:x-request-id": "abcdef",
        "http.url": "http://gw/v1/chat/completions",
        "http.status_code": "0",
        "response_flags": "DC",
    }
    one = part(span("ingress", **attributes))
    assert (one.observer, one.status, one.aborted) == ("proxy", None, True)
    assert part(span("ingress", **attributes | {"http.status_code": "429", "response_flags": "-"})).status == 429
    assert dropped(span("ingress", **attributes | {"http.url": "http://gw/images/1"})) == NOT_OURS


def test_a_proxy_of_litellm() -> None:
    parts, _ = parts_of("litellm-1.109.1")
    calls = [one for one in parts if one.name == "litellm_request"]
    assert [(one.prompt_tokens, one.output_tokens, one.stream, one.model) for one in calls] == [
        (10, 20, False, "tiny"),
        (14, 6, True, "tiny"),
    ]
    assert {one.tenant for one in calls} == {"t-end-user-7"}
    assert all(one.observer == "gateway" and one.ids[1].startswith("response:chatcmpl-") for one in calls)
    outer = [one for one in parts if one.name == "Received Proxy Server Request"]
    assert [one.status for one in outer] == [200, 200, 400]
    assert outer[2].error == "ProxyException"
    assert [one.status for one in parts if one.name == "http_request"] == [200, 200, 400]


def test_a_proxy_of_litellm_with_the_new_names() -> None:
    parts, _ = parts_of("litellm-1.109.1-v2")
    plain, streamed = [one for one in parts if one.name == "llm_call"]
    assert (plain.prompt_tokens, plain.output_tokens, plain.finish, plain.ttft) == (10, 20, "stop", None)
    assert (streamed.stream, streamed.ttft) == (True, pytest.approx(0.138839006))
    assert plain.system == "litellm"
    assert [one.status for one in parts if one.name == "http_request"] == [200, 200, 400]


def test_litellm() -> None:
    attributes = {
        "litellm.call_id": "abcdef",
        "gen_ai.request.model": "m",
        "metadata.user_api_key_team_id": "None",
        "metadata.user_api_key_hash": "f00d",
        "llm.is_streaming": "True",
        "http.response.status_code": 499,
        "litellm.preprocessing.duration_ms": 12.0,
    }
    one = part(span("litellm_request", **attributes), scope="litellm")
    assert (one.stream, one.status, one.aborted, one.phases) == (True, 499, True, {"gateway": 0.012})
    assert part(span("what the caller called it", **attributes), scope="litellm").name == "llm_call"
    assert dropped(span("raw_gen_ai_request", **attributes), scope="litellm") == DETAIL


# Whose it is


def test_tenants_and_sessions_are_pseudonyms() -> None:
    class Nobody(Plain):
        def pseudonym(self, raw: str) -> str:
            return "" if raw == "-" else super().pseudonym(raw)

    attributes = {
        "gen_ai.operation.name": "chat",
        "tenant.id": "-",
        "user.id": "acme",
        "enduser.id": "later",
        "session.id": 17,
    }
    reader = SpanReader(Nobody(), ("tenant.id", "user.id", "enduser.id"))
    (one,), _ = read([protobuf(request(span("chat", **attributes)))], NOW, reader)
    assert (one.tenant, one.session) == ("t-acme", "s-17")


def test_the_configuration_comes_before_what_a_system_tells() -> None:
    attributes = {"litellm.call_id": "abcdef", "litellm.team.id": "team", "tenant.id": "acme"}
    assert part(span("x", **attributes), scope="litellm").tenant == "t-acme"


# Ids and times


def test_a_span_without_ids_can_not_be_joined() -> None:
    made = span("prefill_waiting") | {"traceId": "0" * 32}
    assert dropped(made, scope="sglang server") == NO_IDS
    assert dropped(span("prefill_waiting") | {"traceId": ""}, scope="sglang server") == NO_IDS


@pytest.mark.parametrize("short", ["1", "abc", "null", "two words", "x" * 201, "a\nb\nc\nd", ""])
def test_ids_that_are_none(short: str) -> None:
    one = part(span("kv_router.route_request", request_id=short))
    assert [kind.partition(":")[0] for kind in one.ids] == ["trace"]


@pytest.mark.parametrize("at", [NOW + 3700, NOW - 24 * 3600 - 1])
def test_a_span_of_another_time(at: float) -> None:
    said = request(span("llm_request", at=max(at, 1.0), gen_ai__request__id="chatcmpl-abcdef"))
    seen = NOW if at > 0 else NOW + 25 * 3600
    parts, why = read([protobuf(said)], seen)
    assert (parts, why) == ([], {TIME: 1})


def test_a_span_that_ends_before_it_begins() -> None:
    assert dropped(span("llm_request", seconds=-1, gen_ai__request__id="chatcmpl-abcdef")) == TIME


@pytest.mark.parametrize(
    ("raw", "bare", "response"),
    [
        ("chatcmpl-rq-1", "rq-1", "chatcmpl-rq-1"),
        ("cmpl-rq-1-0", "rq-1", "cmpl-rq-1"),
        ("cmpl-2f6c-13", "2f6c", "cmpl-2f6c"),
        ("rq-1", "rq-1", ""),
    ],
)
def test_what_vllm_puts_around_an_id(raw: str, bare: str, response: str) -> None:
    wraps = (Wrap(prefix="chatcmpl-"), Wrap(prefix="cmpl-", index=True))
    assert unwrap_id(raw, wraps) == (bare, response)


# What users wrote stays out


SECRET = "correct-horse-battery-staple"
PLACES = (
    "gen_ai.prompt",
    "gen_ai.completion",
    "gen_ai.prompt.0.content",
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.system_instructions",
    "gen_ai.tool.definitions",
    "input.value",
    "output.value",
    "llm.prompts",
    "llm.prompts.0.prompt.text",
    "llm.input_messages.0.message.content",
    "llm.invocation_parameters",
    "llm.openai.messages",
    "http.url",
    "http.request.header.authorization",
    "error.message",
    "error.stack_trace",
    "exception.message",
    "hidden_params",
    "metadata.requester_metadata",
    "uri",
)


@pytest.mark.parametrize("name", NAMES)
def test_no_text_of_users_comes_out(name: str) -> None:
    """Secrets wherever a span can hold one: attributes, events, links, names, states; none in what comes out."""
    made = 0
    for line in lines(name):
        said = json.loads(line)
        for of_resource in said["resourceSpans"]:
            of_resource["resource"]["attributes"] += _secrets()
            for of_scope in of_resource["scopeSpans"]:
                of_scope["scope"]["attributes"] = _secrets()
                for one in of_scope["spans"]:
                    _plant(one)
        for decode, payload in ((otlp_wire.groups, protobuf(said)), (otlp_json.groups, json.dumps(said).encode())):
            parts, _ = read([payload], ended(name), SpanReader(Hashed(), ("tenant.id",)), decode)
            made += len(parts)
            assert SECRET.encode() not in msgspec.msgpack.encode(parts)
            assert SECRET not in repr(parts)
            assert "about the sea" not in repr(parts)  # what LiteLLM's recording was asked, and answered
    assert made


class Hashed(Plain):
    def pseudonym(self, raw: str) -> str:
        return f"t-{hash(raw)}"

    session = pseudonym


def _secrets() -> list[dict[str, Any]]:
    return [{"key": place, "value": {"stringValue": SECRET}} for place in PLACES]


def _plant(one: dict[str, Any]) -> None:
    there = {attribute["key"] for attribute in one.get("attributes", [])}
    one.setdefault("attributes", []).extend(s for s in _secrets() if s["key"] not in there)
    one["attributes"] += [
        {"key": "tenant.id", "value": {"stringValue": SECRET}},
        {"key": "session.id", "value": {"stringValue": SECRET}},
        {"key": "error.type", "value": {"stringValue": f"it said {SECRET}"}},
        {"key": SECRET, "value": {"stringValue": "x"}},
    ]
    one.setdefault("events", []).append({"name": SECRET, "timeUnixNano": "1", "attributes": _secrets()})
    one["links"] = [{"traceId": "01" * 16, "spanId": "02" * 8, "traceState": f"a={SECRET}", "attributes": _secrets()}]
    one["traceState"] = f"vendor={SECRET}"
    one["status"] = {"code": 2, "message": SECRET}


def test_names_of_spans_stay_out_where_they_may_hold_anything() -> None:
    one = part(span(SECRET, **{"gen_ai.operation.name": "chat"}))
    assert SECRET not in repr(one)


@pytest.mark.parametrize("attribute", [*PLACES[:13], "prompt", "request.body", "metadata.content", "x.api_key"])
def test_a_map_that_names_such_an_attribute_is_refused(attribute: str) -> None:
    kind = SpanKind(names=("x",), fields={"model": (attribute,)})
    assert span_map._problem(kind)


# Both encodings, and the maps


@pytest.mark.parametrize("name", NAMES)
def test_json_says_the_same_as_protobuf(name: str) -> None:
    parts, why = read(lines(name), ended(name), decode=otlp_json.groups)
    assert (parts, why) == parts_of(name)


def test_maps_speak_of_what_there_is() -> None:
    observers = set(Observer.__args__)  # type: ignore[attr-defined]
    for one in load_span_maps():
        for kind in one.spans:
            assert kind.observer in observers
            assert set(kind.phases) | ({kind.phase} - {""}) <= set(PHASES)
            assert set(kind.fields) <= set(RequestPart.__struct_fields__)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (SpanKind(), "select the spans"),
        (SpanKind(having=("a",)), "give it a name"),
        (SpanKind(names=("x",), pattern="("), "regular expression"),
        (SpanKind(names=("x",), fields={"ttft": ("a",), "itl": ("a",)}), "two things"),
    ],
)
def test_what_is_wrong_with_a_map_is_said(kind: SpanKind, said: str) -> None:
    assert said in span_map._problem(kind)
