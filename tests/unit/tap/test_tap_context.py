"""Traces, request ids, tenants and sessions: what is read, what is added, what stays."""

from __future__ import annotations

import re

import pytest
from tap_stage import Names

from kvitals.agent.requests.tenants import TenantNames
from kvitals.agent.tap.context import ContextFields, context_of
from kvitals.agent.tap.http1 import RequestHead, read_request
from kvitals.config import TenantsTable

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def request(*lines: str) -> RequestHead:
    return read_request("\r\n".join(("POST / HTTP/1.1", "Host: x", *lines, "", "")).encode())


def sent_on(head: RequestHead, wanted: ContextFields | None = None) -> list[str]:
    context = context_of(head, "127.0.0.1", wanted or ContextFields(), Names())
    return head.forwarded(context.added, context.removed).decode().split("\r\n")[2:-2]  # less the first line and Host


def test_without_any_both_ids_are_made() -> None:
    context = context_of(request(), "127.0.0.1", ContextFields(), Names())
    lines = sent_on(request())
    assert re.fullmatch(r"traceparent: 00-[0-9a-f]{32}-[0-9a-f]{16}-01", lines[0])
    assert re.fullmatch(r"X-Request-Id: [0-9a-f]{32}", lines[1])
    assert context.added[0].decode() == f"traceparent: 00-{context.trace}-{context.span}-01"
    assert context.added[1].decode() == f"X-Request-Id: {context.request_id}"
    assert context.parent == ""


@pytest.mark.parametrize("flags", ["00", "01"])
def test_a_given_trace_goes_on_with_the_taps_span_in_it(flags: str) -> None:
    head = request(f"traceparent: 00-{TRACE}-{PARENT}-{flags}", "tracestate: a=1", "X-Request-ID: mine")
    context = context_of(head, "127.0.0.1", ContextFields(), Names())
    assert (context.trace, context.parent, context.request_id) == (TRACE, PARENT, "mine")
    assert context.span not in ("", PARENT)
    lines = sent_on(head)
    assert lines[:2] == ["tracestate: a=1", "X-Request-ID: mine"]
    assert re.fullmatch(rf"traceparent: 00-{TRACE}-[0-9a-f]{{16}}-{flags}", lines[2])
    assert len(lines) == 3


def test_a_given_trace_can_be_kept_to_the_letter() -> None:
    head = request(f"traceparent: 00-{TRACE}-{PARENT}-01", "x-request-id: mine")
    wanted = ContextFields(keep_traceparent=True)
    assert sent_on(head, wanted) == [f"traceparent: 00-{TRACE}-{PARENT}-01", "x-request-id: mine"]
    context = context_of(head, "127.0.0.1", wanted, Names())
    assert (context.trace, context.parent, context.span) == (TRACE, PARENT, "")


def test_a_later_version_of_the_header_is_understood() -> None:
    context = context_of(request(f"traceparent: cc-{TRACE}-{PARENT}-01-more"), "127.0.0.1", ContextFields(), Names())
    assert context.trace == TRACE


@pytest.mark.parametrize(
    "value",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
    ],
)
def test_a_trace_that_is_none_begins_anew(value: str) -> None:
    head = request(f"traceparent: {value}", "tracestate: a=1")
    context = context_of(head, "127.0.0.1", ContextFields(), Names())
    assert context.trace != TRACE and context.parent == ""
    lines = sent_on(head)
    assert [line.split(":")[0] for line in lines] == ["traceparent", "X-Request-Id"]


def test_ids_that_contradict_themselves_are_replaced() -> None:
    other = TRACE.replace("0", "1")
    head = request(
        f"traceparent: 00-{TRACE}-{PARENT}-01",
        f"traceparent: 00-{other}-{PARENT}-01",
        "X-Request-Id: 1",
        "x-request-id: 2",
    )
    context = context_of(head, "127.0.0.1", ContextFields(), Names())
    assert context.trace not in (TRACE, other) and context.request_id not in ("1", "2")
    assert len(sent_on(head)) == 2


def test_who_asks_is_told_by_pseudonyms_alone() -> None:
    head = request("X-Tenant-Id: acme", "X-Session-Id: s1", "Authorization: Bearer sk-secret")
    context = context_of(head, "127.0.0.1", ContextFields(), Names())
    assert (context.tenant, context.session) == ("t-emca", "s-1s")
    assert sent_on(head)[:3] == ["X-Tenant-Id: acme", "X-Session-Id: s1", "Authorization: Bearer sk-secret"]
    assert context_of(head, "10.0.0.1", ContextFields(), Names()).tenant == ""  # not from whom one believes it


def test_a_tenant_named_twice_in_two_ways_is_unknown() -> None:
    context = context_of(request("x-tenant-id: acme", "X-Tenant-Id: umbrella"), "127.0.0.1", ContextFields(), Names())
    assert context.tenant == ""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("x-tenant-id: acme", "x-session-id: s1"), ["X-Session-ID: t-emca/s-1s"]),
        (("x-tenant-id: acme",), ["X-Session-ID: t-emca/"]),
        (("x-session-id: s1",), ["X-Session-ID: /s-1s"]),
        ((), []),
    ],
)
def test_the_session_id_says_who_stores_blocks_without_names(lines: tuple[str, ...], expected: list[str]) -> None:
    told = sent_on(request(*lines), ContextFields(session_id=True))
    assert [line for line in told if line.lower().startswith("x-session-id")] == expected


def test_the_session_comes_from_the_first_header_that_is_there() -> None:
    wanted = ContextFields(session_headers=("x-conversation", "x-session-id"))
    head = request("x-session-id: s1", "X-Conversation: c2")
    assert context_of(head, "127.0.0.1", wanted, Names()).session == "s-2c"


def test_with_the_installations_own_pseudonyms() -> None:
    tenants = TenantNames(TenantsTable(headers=("authorization", "x-tenant-id")), b"k" * 32)
    head = request("x-tenant-id: Zoë", "x-session-id: s1")
    context = context_of(head, "127.0.0.1", ContextFields(session_id=True), tenants)
    assert context.tenant == tenants.pseudonym("Zoë") and context.tenant.startswith("t-")
    assert context.session == tenants.session("s1")
    with_key = request("Authorization: Bearer sk-0123456789abcdef0123")
    assert context_of(with_key, "10.9.9.9", ContextFields(), tenants).tenant == tenants.of_key(
        "sk-0123456789abcdef0123"
    )


def test_a_plain_name_can_not_break_out_of_its_line() -> None:
    tenants = TenantNames(TenantsTable(names="plain"), b"k" * 32)
    head = request("x-tenant-id: a\u2028b\u0085c é", "x-session-id: 1")
    context = context_of(head, "127.0.0.1", ContextFields(session_id=True), tenants)
    (line,) = [line for line in context.added if line.startswith(b"X-Session-ID")]
    read_request(b"GET / HTTP/1.1\r\nHost: x\r\n" + line + b"\r\n\r\n")
    assert line.startswith("X-Session-ID: abc é/s-".encode())
