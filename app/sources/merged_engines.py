"""Engines whose figures on a server are those of several sources together, because the sources have the same labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kvitals.app.identity import without_rank
from kvitals.diagnoser.entities import ENTITIES
from kvitals.diagnoser.judgement import Judgement
from kvitals.diagnoser.sources.engine_pages import engines_present
from kvitals.diagnoser.sources.prometheus import Prometheus, PrometheusQuery
from kvitals.diagnoser.sources.survey import Survey

MOST_NAMED = 3
ALL_MERGED = "Unknown: under each engine's name, this server adds the figures of several sources."
PRESENT_INTERVALS = 1.5
"""A source counts if it has a sample within so many intervals: the old series of a restarted one has none."""

EngineKey = tuple[str, ...]
"""Cluster, node and address of an engine, without its rank."""


def engine_key(labels: Mapping[str, str], engine: str = "engine") -> EngineKey:
    """The key of an engine. engine: the label that has its address."""
    return labels.get("cluster", ""), labels.get("node", ""), without_rank(labels.get(engine, ""))


def merged_engines(server: Prometheus, of: Survey, engines: Collection[EngineKey]) -> dict[EngineKey, list[str]]:
    """Of these engines, those with several sources -> the labels in which the sources differ. Raises ServerError."""
    metric, address = (ENTITIES, "engine") if of.agents else ("up", "instance")
    present = f"({metric} and count_over_time({metric}[{PRESENT_INTERVALS * of.interval:.0f}s]))"
    if not of.agents:  # a probe of the same address is another job, and adds nothing
        present = f"({present} and on (instance, job) {engines_present(of.names)})"
    labels = f"(cluster, node, {address})"
    several = f"count by {labels} {present} > 1"
    if not engines or not server.one(PrometheusQuery(several, of.at)):
        return {}
    sources: dict[EngineKey, list[dict[str, str]]] = {}
    for one in server.one(PrometheusQuery(f"{present} and on {labels} ({several})", of.at)):
        if (key := engine_key(one.metric, address)) in engines:
            sources.setdefault(key, []).append(one.metric)
    return {key: _differing(several_) for key, several_ in sorted(sources.items())}


def _differing(sources: Sequence[Mapping[str, str]]) -> list[str]:
    names = {name for labels in sources for name in labels}
    return sorted(name for name in names if len({labels.get(name, "") for labels in sources}) > 1)


_ADVICE = {
    True: "Give each agent its own cluster or node under [labels]",
    False: "Give the targets of each source their own label `cluster`, by relabelling. If another label already "
    "separates them, `kvitals export --cluster-label LABEL` writes rules and boards that use it",
}


def merged_text(merged: Mapping[EngineKey, Sequence[str]], agents: bool) -> str:
    """What is wrong with these engines and what to do, without a full stop; empty where there are none. agents: whether
    agents export them."""
    if not merged:
        return ""
    which = ", ".join("/".join(filter(None, key)) for key in list(merged)[:MOST_NAMED])
    more = f" and {len(merged) - MOST_NAMED:,} more" if len(merged) > MOST_NAMED else ""
    labels = ", ".join(sorted({label for names in merged.values() for label in names}))
    return (
        f"no verdict on {which}{more}: this server has several sources with the same cluster, node and engine, and "
        f"adds their figures. The sources differ only in {labels}. {_ADVICE[agents]}; if two jobs scrape one engine, "
        f"remove one of them"
    )


def of_separate(judgements: Sequence[Judgement], merged: Collection[EngineKey]) -> Sequence[Judgement]:
    """The judgements that are not about merged engines."""
    return [one for one in judgements if engine_key(one.entity) not in merged] if merged else judgements
