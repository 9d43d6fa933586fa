"""Requests of both sides of a disaggregated deployment counted together.

A request is seen by the prefill and by the decode engine. So where a board tells the two apart in one place, adding
both up in another counts each request twice, and mixes two times into one quantile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from kvitals.dashboards.lint.metrics import Metrics
from kvitals.dashboards.lint.trees import TreeDefect, rewrite_tree, selectors
from kvitals.series.promql import Aggregate, Expr, Selector
from kvitals.series.types import Matcher, MatchOp

OF_REQUESTS = frozenset(
    (
        "kvitals_e2e_seconds", "kvitals_ttft_seconds", "kvitals_queue_seconds", "kvitals_inference_seconds",
        "kvitals_requests_finished_total", "kvitals_prompt_tokens_total", "kvitals_request_prompt_tokens",
    )
)  # fmt: skip
_SIDES = re.compile(r"prefill|decode", re.IGNORECASE)
_DECODE = re.compile(r"decode", re.IGNORECASE)


def decode_matcher(expressions: list[Expr]) -> Matcher | None:
    """How a document selects its decode side; None where it does not tell sides apart."""
    found = [m for expr in expressions for one in selectors(expr) for m in one.matchers if _tells(m)]
    sides = {bool(_DECODE.search(m.value)) for m in found}
    if sides == {True, False}:
        return next(m for m in found if _DECODE.search(m.value))
    if found:
        return Matcher(found[0].name, found[0].op, _SIDES.sub("decode", found[0].value))
    return None


def check_roles(expr: Expr, decode: Matcher, metrics: Metrics) -> TreeDefect | None:
    """The query, if it adds up what both sides have."""
    if any(_tells(m) for one in selectors(expr) for m in one.matchers):
        return None  # it tells them apart, in one way or another
    mixed: Mapping[Selector, Selector] = {
        one: replace(one, matchers=(*one.matchers, decode))
        for one in selectors(expr)
        if _is_of_both(one, decode, metrics)
    }
    adds_up = any(isinstance(node, Aggregate) and _SIDE_LABELS.isdisjoint(node.grouping) for node in expr.walk())
    if not mixed or not adds_up:
        return None
    names = ", ".join(sorted({one.name for one in mixed}))
    return TreeDefect(
        "roles-mixed",
        f"prefill and decode engines both report {names}: each request counts twice, and two different times are mixed",
        rewrite_tree(expr, lambda e: mixed.get(e) if isinstance(e, Selector) else None),
    )


_SIDE_LABELS = frozenset(
    (
        "role", "pod", "instance", "job", "container", "deployment", "service", "component", "engine", "node",
        "host", "server", "worker",
    )
)  # fmt: skip
"""Engines that differ in these are not added up."""


def _is_of_both(selector: Selector, decode: Matcher, metrics: Metrics) -> bool:
    known = metrics.known(selector.name)
    if known is None or known.family not in OF_REQUESTS:
        return False
    return not any(m.name == decode.name for m in selector.matchers)


_OF_TARGET = re.compile(r"role|pod|instance|job|container|deploy|service|component|app|set|worker|host|node|engine")


def _tells(matcher: Matcher) -> bool:
    """Whether it selects one side, and by whose metric it is: `phase` and `mode` are labels of metrics themselves."""
    return (
        bool(_OF_TARGET.search(matcher.name))
        and matcher.op in (MatchOp.EQ, MatchOp.RE)
        and bool(_SIDES.search(matcher.value))
        and not (
            re.search("prefill", matcher.value, re.IGNORECASE) and re.search("decode", matcher.value, re.IGNORECASE)
        )
    )
