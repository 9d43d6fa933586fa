"""What answers say of themselves, from those of a real engine and from hostile ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.agent.tap.response_reader import MAX_BODY, MAX_EVENT, MAX_GAPS, TAIL, Events, Gaps, Whole

STREAMS = Path(__file__).parents[2] / "fixtures" / "streams"


def recorded(name: str) -> bytes:
    return (STREAMS / f"vllm-0.32-{name}.txt").read_bytes()


def streamed(data: bytes, size: int = 1 << 20) -> Events:
    """The stream in pieces of `size` bytes, one a second."""
    events = Events()
    for number, at in enumerate(range(0, len(data), size)):
        events.feed(data[at : at + size], float(number))
    return events


def whole(data: bytes) -> Whole:
    body = Whole()
    for at in range(0, len(data), 1 << 14):
        body.feed(data[at : at + (1 << 14)], 0.0)
    body.end()
    return body


@pytest.mark.parametrize(
    ("name", "usage", "finish", "outputs"),
    [
        ("chat-stream", (303, 0, 6), "length", 6),
        ("chat-stream-without-usage", (None, None, None), "length", 6),
        ("completions-stream", (288, 0, 6), "length", 6),
        ("responses-stream", (303, 288, 16), "length", 12),  # some of its events have several tokens
        ("messages-stream", (303, 288, 6), "length", 6),
    ],
)
def test_streams_of_vllm(name: str, usage: tuple[int | None, ...], finish: str, outputs: int) -> None:
    events = streamed(recorded(name))
    said = events.said
    assert (said.prompt_tokens, said.cached_tokens, said.output_tokens) == usage
    assert (said.finish, said.model, said.error, said.unread) == (finish, "tiny", "", 0)
    assert said.ended and said.id
    assert events.gaps.count == outputs - 1


@pytest.mark.parametrize("name", ["chat-stream", "completions-stream", "responses-stream", "messages-stream"])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_pieces_change_nothing(name: str, size: int) -> None:
    one, many = streamed(recorded(name)), streamed(recorded(name), size)
    assert many.said == one.said and many.gaps.count == one.gaps.count


def test_the_first_output_is_the_first_byte_of_the_first_event_that_has_some() -> None:
    first, second, *_ = recorded("chat-stream").split(b"\n\n")
    events = Events()
    events.feed(first + b"\n\n", 1.0)  # a role and nothing else
    assert events.first_output is None
    events.feed(second[:10], 2.0)
    events.feed(second[10:] + b"\n", 3.0)
    assert events.first_output is None
    events.feed(b"\n", 4.0)
    assert events.first_output == 2.0
    events.feed(second + b"\n\n" + second + b"\n\n", 7.0)
    assert (events.gaps.count, events.gaps.largest, events.gaps.mean) == (2, 5.0, 2.5)


@pytest.mark.parametrize(
    ("told", "output"),
    [
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, False),
        ({"choices": [{"delta": {"content": "a"}}]}, True),
        ({"choices": [{"delta": {"content": None, "reasoning_content": "so"}}]}, True),
        ({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}, True),
        ({"choices": [{"delta": {}, "finish_reason": "stop"}]}, False),
        ({"choices": [{"text": ""}]}, False),
        ({"choices": [{"text": "", "token_ids": [7]}]}, True),
        ({"choices": [{"text": ""}, {"text": "b"}]}, True),
        ({"choices": []}, False),
        ({"choices": "none", "delta": 3}, True),
        ({"choices": [3, None]}, False),
        ({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}}, True),
        ({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": "."}}, False),
        ({"type": "response.output_text.done", "text": "all of it"}, False),
        ({"text": "SGLang's", "meta_info": {}}, True),
        ({"type": "ping"}, False),
    ],
)
def test_what_is_output(told: dict[str, object], output: bool) -> None:
    events = streamed(b"data: " + json.dumps(told).encode() + b"\n\n")
    assert (events.first_output is not None) == output
    assert events.said.unread == 0


def test_sglang_tells_in_its_own_words() -> None:
    # As its documentation shows; not recorded.
    meta = {
        "id": "abc",
        "finish_reason": {"type": "length", "length": 8},
        "prompt_tokens": 5,
        "completion_tokens": 8,
        "cached_tokens": 4,
    }
    said = streamed(
        b"data: " + json.dumps({"text": "hi", "meta_info": meta}).encode() + b"\r\n\r\ndata: [DONE]\r\n\r\n"
    ).said
    assert (said.prompt_tokens, said.cached_tokens, said.output_tokens) == (5, 4, 8)
    assert (said.id, said.finish, said.ended) == ("abc", "length", True)


def test_an_error_is_known_by_its_class_and_never_by_its_text() -> None:
    assert whole(recorded("unknown-model")).said.error == "NotFoundError"
    told = {"error": {"message": "prompt: my secret", "type": "my secret is", "code": 500}}
    said = streamed(b"data: " + json.dumps(told).encode() + b"\n\n").said
    assert said.error == "500"
    assert whole(b'{"object": "error", "message": "m", "type": "BadRequestError"}').said.error == "BadRequestError"
    assert whole(b'{"error": "no such thing"}').said.error == "error"
    assert whole(b'{"id": "resp_1", "error": null}').said.error == ""


@pytest.mark.parametrize(
    "error",
    [
        # As vLLM 0.32, SGLang 0.5, TGI 3 and OpenAI word it.
        {"message": "This model's maximum context length is 512 tokens. However, your prompt contains at least 513 "
         "input tokens, which exceeds this limit even without any output tokens.", "code": 400},
        {"message": "The decoder prompt (length 600) is longer than the maximum model length of 512.", "code": 400},
        {"message": "The input (600 tokens) is longer than the model's context length (512 tokens).", "code": 400},
        {"message": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 512. Given: 600 `inputs`"
         " tokens and 20 `max_new_tokens`", "type": "validation"},
        {"message": "too much", "type": "invalid_request_error", "code": "context_length_exceeded"},
        "The input (600 tokens) is longer than the model's context length (512 tokens).",
    ],
)  # fmt: skip
def test_a_request_that_does_not_fit_the_context_has_one_word(error: object) -> None:
    assert whole(json.dumps({"error": error}).encode()).said.error == "context_length_exceeded"


def test_another_fault_is_not_taken_for_a_long_prompt() -> None:
    told = {"error": {"message": "max_tokens must be at least 1, got 0.", "type": "BadRequestError", "code": 400}}
    assert whole(json.dumps(told).encode()).said.error == "BadRequestError"
    far = {"error": {"message": " " * 5000 + "maximum context length", "type": "BadRequestError", "code": 400}}
    assert whole(json.dumps(far).encode()).said.error == "BadRequestError"  # an engine says it at the beginning


def test_a_body_is_read_whole() -> None:
    said = whole(recorded("chat")).said
    assert (said.prompt_tokens, said.cached_tokens, said.output_tokens) == (303, 288, 6)
    assert (said.finish, said.model, said.unread) == ("length", "tiny", 0)
    anthropic = b'{"type": "message", "stop_reason": "end_turn", "usage": {"input_tokens": 3, "output_tokens": 1}}'
    said = whole(anthropic).said
    assert (said.finish, said.prompt_tokens, said.cached_tokens) == ("stop", 3, None)


def test_of_a_long_body_the_end_is_searched() -> None:
    numbers = ",".join(["0.123456"] * (2 * MAX_BODY // 8))
    usage = '{"prompt_tokens": 4, "total_tokens": 4}'
    body = whole(f'{{"object": "list", "data": [{{"embedding": [{numbers}]}}], "usage" : {usage}}}'.encode())
    assert (body.said.prompt_tokens, body.said.output_tokens, body.said.unread) == (4, None, 0)
    # A text can not pass itself off for the usage: its quotes are escaped.
    text = json.dumps('"usage": {"prompt_tokens": 9}')
    said = whole(f'{{"data": "{"x" * 2 * MAX_BODY}", "text": {text}}}'.encode()).said
    assert said.prompt_tokens is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"usage"',
        b"\xff\xfe",
        b'{"id": "\xff"}',
        b"[" * 100_000,
        b'{"usage": ' * 1000,
        b"[{}, {}]",
        b"x" * 2 * MAX_BODY,
    ],
)
def test_what_is_no_answer_is_unread_and_unknown(body: bytes) -> None:
    said = whole(body).said
    assert said.unread == (0 if len(body) > MAX_BODY else 1)
    assert said.prompt_tokens is None
    events = streamed(b"data: " + body.replace(b"\n", b"") + b"\n\ndata: [DONE]\n\n")
    assert events.said.unread == (1 if body else 0)
    assert events.said.ended


@pytest.mark.parametrize("value", [-1, 1.5, True, "7", None, [], {}, 1 << 60])
def test_counts_that_are_none_are_unknown(value: object) -> None:
    usage = {"prompt_tokens": value, "completion_tokens": value, "prompt_tokens_details": {"cached_tokens": value}}
    said = whole(json.dumps({"usage": usage}).encode()).said
    assert (said.prompt_tokens, said.cached_tokens, said.output_tokens) == (None, None, None)


def test_no_more_than_one_event_is_held() -> None:
    events = Events()
    for _ in range(100):
        events.feed(b"data: " + b"x" * 50_000, 0.0)
        assert len(events._line) + sum(map(len, events._data)) <= MAX_EVENT + 50_006
    events.feed(b"\n\n" + recorded("chat-stream"), 1.0)
    assert events.said.unread == 1
    assert events.said.prompt_tokens == 303  # what comes after it is read
    many_lines = Events()
    for _ in range(1000):
        many_lines.feed(b"data: " + b"x" * 1000 + b"\n", 0.0)
    assert sum(map(len, many_lines._data)) <= MAX_EVENT
    body = Whole()
    for _ in range(100):
        body.feed(b"x" * 50_000, 0.0)
        assert len(body._body) <= MAX_BODY + 50_000
    assert len(body._body) <= TAIL


def test_gaps_in_bounded_memory() -> None:
    gaps = Gaps()
    for number in range(100_000):
        gaps.add(1.0 if number % 20 == 0 else 0.01)  # one in twenty is slow
    assert gaps.count == 100_000 and gaps.largest == 1.0
    assert gaps.mean == pytest.approx(0.0595)
    assert gaps.p99 == pytest.approx(1.0)
    assert len(gaps._kept) <= MAX_GAPS
    few = Gaps()
    assert (few.mean, few.p99) == (None, None)
    for value in range(100):
        few.add(float(value))
    assert few.p99 == 99.0


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_garbage_is_no_failure(pieces: list[bytes]) -> None:
    events, body = Events(), Whole()
    for piece in pieces:
        events.feed(b"data:" + piece + b"\n\n", 0.0)
        body.feed(piece, 0.0)
    body.end()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                (
                    "choices",
                    "delta",
                    "usage",
                    "error",
                    "message",
                    "response",
                    "type",
                    "text",
                    "id",
                    "meta_info",
                    "object",
                )
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_answers_of_wrong_types_are_no_failure(told: object) -> None:
    streamed(b"data: " + json.dumps(told).encode() + b"\n\n")
    whole(json.dumps(told).encode())
