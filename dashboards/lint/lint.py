"""Documents in, a report out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kvitals.dashboards.lint.check_labels import check_labels, check_variables
from kvitals.dashboards.lint.check_limits import check_bounds, check_burn, check_limits
from kvitals.dashboards.lint.check_names import check_names
from kvitals.dashboards.lint.check_operators import check_bool, check_unit, check_words
from kvitals.dashboards.lint.check_quantiles import check_quantiles
from kvitals.dashboards.lint.check_rates import (
    check_conditions,
    check_functions,
    check_rate_of_sum,
    check_since_start,
    check_sums,
    check_windows,
)
from kvitals.dashboards.lint.check_roles import check_roles, decode_matcher
from kvitals.dashboards.lint.check_shown import check_buckets, check_means, check_shown
from kvitals.dashboards.lint.defect import Defect, Document, LintedQuery, Report, Unread
from kvitals.dashboards.lint.metrics import Metrics
from kvitals.dashboards.lint.trees import TreeDefect, selectors
from kvitals.dashboards.lint.variables import MAX_QUERY, OpenedQuery, names_in, rename_metrics, variables_in
from kvitals.rules.engine_map import load_map
from kvitals.series.promql import Expr, InvalidPromQLError, PromQLError
from kvitals.series.types import Matcher

RULE_SECONDS = 300.0
"""The window in corrections of rules; a panel's is Grafana's own."""
MAX_QUERIES = 20_000
_OF_VALUES = re.compile(r"^\s*(label_values|query_result|metrics|label_names)\s*\((.*)\)\s*$", re.DOTALL)
_BY_HELM = re.compile(r"\{\{")


def lint(documents: Sequence[Document], metrics: Metrics, left_out: Iterable[str] = ()) -> Report:
    """Check every query of every document."""
    defects: list[Defect] = []
    unread: list[Unread] = []
    count = 0
    for document in documents:
        queries = document.queries[: MAX_QUERIES - count]
        count += len(queries)
        for found in _of_document(document, queries, metrics):
            (defects if isinstance(found, Defect) else unread).append(found)  # type: ignore[arg-type]
    said = [line for document in documents for line in document.left_out]
    if count >= MAX_QUERIES:
        said.append(f"only the first {MAX_QUERIES} queries were checked")
    versions = {system: metrics.version(load_map(system)) for system in sorted(metrics.used)}
    return Report(
        documents=len(documents),
        queries=count,
        defects=defects,
        unread=unread,
        left_out=[*left_out, *said],
        engines=versions,
    )


def _of_document(document: Document, queries: Sequence[LintedQuery], metrics: Metrics) -> Iterator[Defect | Unread]:
    name = document.name
    opened: list[tuple[LintedQuery, OpenedQuery | None, PromQLError | None]] = []
    for query in queries:
        text = _selected(query.text) if query.kind == "variable" else query.text
        try:
            opened.append((query, OpenedQuery(text), None))
        except PromQLError as error:
            opened.append((query, None, error))
    decode = decode_matcher([one.expr for _, one, _ in opened if one is not None])
    for query, one, why in opened:
        told = list(check_variables(variables_in(query.text), document.variables))
        if one is None:
            told += check_names(names_in(query.text), query, metrics)
            invalid = why if isinstance(why, InvalidPromQLError) and query.kind != "variable" else None
            if invalid is not None and not _is_filled_in(query.text):
                told.append(_no_promql(invalid))
            elif query.kind != "variable":
                yield Unread(document=name, place=query.place, query=query.text, why=_unread(query.text, str(why)))
            yield from (_defect(name, query, found, None, _renames(told)) for found in told)
            continue
        told += _of_query(query, one, metrics, decode)
        yield from (_defect(name, query, found, one, _renames(told)) for found in told)


def _is_filled_in(text: str) -> bool:
    """Whether something else than Prometheus completes a query, so that what is written need not be PromQL."""
    return len(text) > MAX_QUERY or bool(_BY_HELM.search(text) or variables_in(text))


def _no_promql(error: InvalidPromQLError) -> TreeDefect:
    of_vector = "expected type matrix" in str(error)
    advice = "a function over time takes a metric with a range: sum(rate(x[5m])), not rate(sum(x))" if of_vector else ""
    return TreeDefect("not-promql", f"Prometheus refuses this query: {error}", advice=advice or "correct the query")


def _unread(text: str, why: str) -> str:
    """Why a query was not checked, and how much of it was looked at."""
    if len(text) > MAX_QUERY:
        return f"not checked: it has {len(text)} characters, more than {MAX_QUERY}"
    reason = "it is a template that Helm or a similar tool fills in" if _BY_HELM.search(text) else why
    return f"only its names were checked: {reason}"


def _renames(several: Iterable[TreeDefect]) -> dict[str, str]:
    return {old: new for found in several for old, new in found.renames}


def _of_query(query: LintedQuery, one: OpenedQuery, metrics: Metrics, decode: Matcher | None) -> Iterator[TreeDefect]:
    expr: Expr = one.expr
    names = dict.fromkeys(s.name for s in selectors(expr) if s.name and not one.is_variable(s.name))
    window = RULE_SECONDS if query.kind in ("alert", "record") else one.window()
    if query.kind == "variable":
        yield from check_names(list(names), query, metrics)
        return
    yield from check_names(list(names), query, metrics, expr, window)
    yield from check_labels(expr, metrics)
    yield from check_functions(expr, metrics)
    yield from check_rate_of_sum(expr)
    yield from check_windows(expr)
    yield from check_since_start(expr, metrics, window)
    yield from check_conditions(expr, metrics, window)
    yield from check_sums(expr, query, metrics)
    yield from check_quantiles(expr, query)
    yield from check_buckets(expr)
    yield from check_means(expr)
    yield from check_shown(expr, query, metrics)
    yield from check_limits(expr, query, metrics)
    yield from check_bounds(expr, metrics)
    yield from check_burn(expr, query)
    yield from check_bool(expr)
    yield from check_unit(expr, query, metrics)
    yield from check_words(expr, query, metrics)
    if decode is not None and query.kind == "panel" and (mixed := check_roles(expr, decode, metrics)) is not None:
        yield mixed


def _defect(
    name: str, query: LintedQuery, found: TreeDefect, one: OpenedQuery | None, renames: Mapping[str, str]
) -> Defect:
    """`renames`: of all names of the query, so that a correction leaves no other name that is not there."""
    fix = rename_metrics(query.text, renames) if found.renames else ""
    if found.fixed is not None and one is not None:
        fix = rename_metrics(one.written(found.fixed), renames)
    return Defect(
        code=found.code,
        weight="warning" if found.warning else "error",
        document=name,
        place=query.place,
        query=query.text,
        why=found.why,
        fix=fix,
        advice=found.advice,
    )


def _selected(text: str) -> str:
    """What a variable's query selects: label_values(METRIC{...}, LABEL)."""
    found = _OF_VALUES.match(text)
    if found is None:
        return text
    inside = found[2].rpartition(",")[0] if found[1] == "label_values" and "," in found[2] else found[2]
    return inside or "{}"
