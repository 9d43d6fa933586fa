"""Names that are not there: dead, renamed, misspelt, without their end."""

from __future__ import annotations

from collections.abc import Iterator

from dashboards.lint.defect import Query
from dashboards.lint.metrics import Known, Metrics, Wrong
from dashboards.lint.trees import Found

_CODES = {
    "dead": "dead-metric",
    "unknown": "unknown-metric",
    "total": "counter-without-total",
    "part": "histogram-without-part",
}


def check_names(names: list[str], query: Query, metrics: Metrics) -> Iterator[Found]:
    for name in names:
        found = metrics.look_up(name)
        if isinstance(found, Wrong):
            yield _wrong(name, found, query)
        elif isinstance(found, Known) and (usual := _usual(found, metrics)):
            yield Found(
                "rewritten-name",
                f"{found.system} itself says {usual}; {name} is there only where something rewrites names, such as Ray"
                " Serve or an OpenTelemetry collector",
                warning=True,
                renames=((name, usual + found.part),),
            )


def _wrong(name: str, found: Wrong, query: Query) -> Found:
    version = f" {found.version}" if found.version else ""
    why = f"{name}: {found.why}; {found.system}{version} shows no series of it"
    if query.kind == "alert":
        absent = "absent(" in query.text.replace(" ", "")
        why += ", so this alert fires always" if absent else ", so nothing of it can fire the alert"
    advice = "" if found.instead else "nothing took its place: leave it out, or watch what it stood for otherwise"
    if found.kind == "part":
        advice = "take _bucket for quantiles, _sum over _count for a mean, _count for how many"
    renames = ((name, found.instead),) if found.instead else ()
    return Found(_CODES[found.kind], why, advice=advice, warning=not found.sure, renames=renames)


def _usual(found: Known, metrics: Metrics) -> str:
    """The name that the program itself has, where a query has another spelling of it; empty where it is the same."""
    return metrics.usual(found)
