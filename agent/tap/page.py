"""The tap's own metrics page, in Prometheus' text format 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvitals.agent import loop_watch
from kvitals.agent.exports.metrics_page import number
from kvitals.agent.tap.books import Books
from kvitals.agent.tap.delivery import PartDelivery
from kvitals.series.types import escape

LOOP = (
    (
        "kvitals_loop_stall_seconds",
        "gauge",
        "The longest time within the last minute in which one task blocked the event loop.",
    ),
    ("kvitals_loop_stall_cpu_seconds", "gauge", "CPU time of the loop's thread within that longest time."),
    ("kvitals_loop_stalls_total", "counter", "Number of times that one task blocked the event loop for 0.1 s or more."),
)

Sample = tuple[Mapping[str, str], float]


def render(books: Books, delivery: PartDelivery) -> bytes:
    """The page as of now."""
    lines: list[str] = []

    def tell(name: str, kind: str, meaning: str, samples: Iterable[Sample]) -> None:
        lines.append(f"# HELP {name} {meaning}")
        lines.append(f"# TYPE {name} {kind}")
        lines.extend(f"{name}{_labels(labels)} {number(float(value))}" for labels, value in samples)

    def one(value: float) -> list[Sample]:
        return [({}, value)]

    def by_reason(counts: Mapping[str, int]) -> list[Sample]:
        return [({"reason": reason}, count) for reason, count in sorted(counts.items())]

    tell("kvitals_tap_connections", "gauge", "Connections of clients.", one(books.connections))
    tell("kvitals_tap_requests_in_flight", "gauge", "Requests under way.", one(len(books.under_way)))
    tell(
        "kvitals_tap_oldest_request_seconds",
        "gauge",
        "Age of the oldest request that has not ended; 0 if all have ended.",
        one(books.oldest_seconds),
    )
    tell(
        "kvitals_tap_requests_total",
        "counter",
        "Requests that ended. path: the end of a measured request's path, else empty. outcome: the HTTP status; "
        "aborted if the client left first; or the failure before there was a status.",
        [({"path": path, "outcome": outcome}, n) for (path, outcome), n in sorted(books.requests.items())],
    )
    tell(
        "kvitals_tap_bytes_total",
        "counter",
        "Bytes forwarded, heads included.",
        [({"direction": "request"}, books.request_bytes), ({"direction": "response"}, books.response_bytes)],
    )
    tell(
        "kvitals_tap_upstream_failures_total",
        "counter",
        "Times that the upstream was unreachable or closed the connection too early.",
        by_reason(books.failures),
    )
    tell("kvitals_tap_refused_total", "counter", "Clients or requests that the tap refused.", by_reason(books.refused))
    tell(
        "kvitals_tap_unread_answers_total",
        "counter",
        "Responses that the tap forwarded but could not parse in full, so that some of their numbers are unknown.",
        by_reason(books.unread),
    )
    tell(
        "kvitals_tap_bookkeeping_failures_total",
        "counter",
        "Times that the bookkeeping failed; the tap still forwarded the traffic.",
        one(books.broken),
    )
    tell(
        "kvitals_tap_agent_up",
        "gauge",
        "1 if the agent accepted the last parts, else 0.",
        one(float(delivery.reaches_agent)),
    )
    tell(
        "kvitals_tap_parts_waiting", "gauge", "Parts that the tap has not sent to the agent yet.", one(delivery.waiting)
    )
    tell("kvitals_tap_parts_delivered_total", "counter", "Parts that the agent accepted.", one(delivery.delivered))
    tell(
        "kvitals_tap_parts_dropped_total",
        "counter",
        "Parts that the agent never received.",
        by_reason({"full": 0, "refused": 0, **delivery.dropped}),
    )
    if (watch := loop_watch.current()) is not None:
        loop = watch.values()
        for name, kind, meaning in LOOP:
            tell(name, kind, meaning, one(loop[name]))
    return "".join(f"{line}\n" for line in lines).encode()


def _labels(labels: Mapping[str, str]) -> str:
    inner = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""
