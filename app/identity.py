"""Which engines an alert is about: one resolver for all names that platforms have for an engine.

An alert may name an engine by our label `engine`, by the URL of its page, by Prometheus' `instance`, or by Kubernetes'
`namespace` and `pod`. Labels of the place (cluster, node, pool) must be equal wherever both sides have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from kvitals.series.ascii_numbers import is_digits

PLACE = ("cluster", "pool", "node")
URLS = ("url", "target", "endpoint_url")
"""Labels under which exporters and probes name the page that they look at."""
NAMING = ("engine", *URLS, "instance", "namespace", "pod")


@dataclass(frozen=True)
class KnownEngine:
    """An engine and its names. place: those of cluster, pool and node that are known."""

    engine: str
    place: Mapping[str, str]
    names: frozenset[str]  # addresses, configured name, pod as `namespace/pod` and alone


@dataclass(frozen=True)
class ResolvedEntity:
    """What an alert is about. engines: those that it names, else all at its place; named: whether it names one."""

    engines: Sequence[KnownEngine]
    named: bool

    @property
    def alike(self) -> Sequence[KnownEngine]:
        """Engines of one name in several clusters or on several nodes, between which the alert's labels do not decide.
        Empty where it names one. A label that one of two does not have is no difference."""
        first: list[KnownEngine] = []
        for one in self.engines if self.named else ():
            if not any(_is_same(one, other) for other in first):
                first.append(one)
        return first if len(first) > 1 else ()

    def values(self, label: str) -> frozenset[str]:
        """What the engines have for a label of the place."""
        return frozenset(one.place[label] for one in self.engines if one.place.get(label))


def _is_same(one: KnownEngine, other: KnownEngine) -> bool:
    shared = one.place.keys() & other.place.keys() & {"cluster", "node"}
    return all(one.place[name] == other.place[name] for name in shared)


def known_engine(labels: Mapping[str, str], names: Iterable[str] = ()) -> KnownEngine:
    """An engine from the labels of its series. names: further ones, as they are configured or scraped."""
    engine = labels.get("engine", "")
    place = {name: labels[name] for name in PLACE if labels.get(name)}
    every = {engine, without_rank(engine), *names}
    pods = {without_rank(name).rpartition("/")[2] for name in every if ":" not in name}
    return KnownEngine(engine, place, frozenset(every | pods) - {""})


def without_rank(engine: str) -> str:
    """`host:port` or the configured name of `host:port/0` or `name/0`."""
    base, slash, rank = engine.rpartition("/")
    return base if slash and is_digits(rank) else engine


def address(url: str) -> str:
    """`host:port` of a URL; other texts as they are."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    return parts.netloc.rpartition("@")[2] or url


def resolve(labels: Mapping[str, str], engines: Iterable[KnownEngine]) -> ResolvedEntity:
    """The engines that labels of an alert are about; none where they name an engine that is not known."""
    here = [one for one in engines if same_place(one.place, labels)]
    asked = list(_names(labels))
    for names in asked:
        if found := [
            one for one in here if not one.names.isdisjoint(names) and not _is_of_other_namespace(one, labels)
        ]:
            exact = [one for one in found if one.engine in names]
            return ResolvedEntity(exact or found, named=True)
    if asked:
        return ResolvedEntity([], named=True)
    wanted = [name for name in ("pool", "node") if labels.get(name)]
    return ResolvedEntity([one for one in here if all(name in one.place for name in wanted)], named=False)


def names_engines(labels: Mapping[str, str]) -> bool:
    """Whether labels of an alert name an engine, a pool or a node, known or not."""
    return bool(labels.get("pool") or labels.get("node")) or names_engine(labels)


def names_engine(labels: Mapping[str, str]) -> bool:
    """Whether labels of an alert name an engine, known or not."""
    return any(_names(labels))


def same_place(place: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether no label of the place differs. A label that one side does not have is no difference: a Prometheus adds
    `cluster` to its alerts and not to its series."""
    return all(labels.get(name, value) == value for name in PLACE if (value := place.get(name)))


def _is_of_other_namespace(engine: KnownEngine, labels: Mapping[str, str]) -> bool:
    """Whether an alert names a pod of the engine's name, and the engine is known to be in another namespace."""
    pod, namespace = labels.get("pod"), labels.get("namespace")
    if not pod or not namespace:
        return False
    pods = {name for name in engine.names if name.endswith(f"/{pod}") and "//" not in name}
    return bool(pods) and f"{namespace}/{pod}" not in pods


def _names(labels: Mapping[str, str]) -> Iterable[set[str]]:
    """The names in labels, the surest first: ours, the page, the pod, then Prometheus' address."""
    if engine := labels.get("engine"):
        yield {engine}
    for label in URLS:
        if url := labels.get(label):
            yield {url, address(url)}
    if pod := labels.get("pod"):
        namespace = labels.get("namespace")
        yield {f"{namespace}/{pod}"} if namespace else {pod}
        yield {pod}
    if instance := labels.get("instance"):
        yield {instance, address(instance)}
