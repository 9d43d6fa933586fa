"""A target that is fed with pages, and what the window has of it then."""

import re
from pathlib import Path

from kvitals.agent.collectors.page_parser import PageParser
from kvitals.agent.collectors.status import Identity
from kvitals.agent.families import Translator
from kvitals.rules.engine_map import load_map
from kvitals.series.types import Labels, Matcher, MatchOp, is_stale
from kvitals.series.window import Window

FIXTURES = Path(__file__).parents[2] / "fixtures" / "exposition"


def page(name: str) -> str:
    return (FIXTURES / f"vllm-0.32-{name}.prom").read_text()


class Watched:
    """A target that is fed with pages a second apart."""

    def __init__(self, name: str = "", max_series: int = 10_000, **labels: str) -> None:
        self.window = Window(1000.0, max_series)
        self.translator = Translator(self.window, "t", Identity("h:8000", name, labels), [load_map("vllm")])
        self.parser = PageParser()
        self.t = 1000.0

    def feed(self, text: str) -> str:
        self.t += 1.0
        parsed = self.parser.parse(text.encode())
        return self.translator.good(self.t, parsed, 0.01, len(text)).reason

    def fail(self, reason: str = "refused") -> None:
        self.t += 1.0
        self.translator.bad(self.t, reason, "message", 0.01)

    def history(self, selector: str) -> dict[Labels, list[float | None]]:
        """Cells of the matching series over all rows; None where there is no sample."""
        found = {}
        for frame in self.window.select(matchers(selector), 0, 1e12):
            gone = is_stale(frame.values)
            for column, labels in enumerate(frame.labels):
                cells = zip(frame.values[:, column].tolist(), gone[:, column].tolist(), strict=True)
                found[labels] = [None if stale else value for value, stale in cells]
        return found

    def one(self, selector: str) -> list[float | None]:
        found = self.history(selector)
        assert len(found) == 1, found
        return next(iter(found.values()))

    def now(self, selector: str) -> dict[Labels, float]:
        return {labels: cells[-1] for labels, cells in self.history(selector).items() if cells[-1] is not None}

    def value(self, selector: str) -> float:
        found = self.now(selector)
        assert len(found) == 1, found
        return next(iter(found.values()))


def matchers(selector: str) -> list[Matcher]:
    name, _, labels = selector.partition("{")
    found = [Matcher("__name__", MatchOp.EQ, name)]
    return found + [Matcher(k, MatchOp.EQ, v) for k, v in re.findall(r'(\w+)="([^"]*)"', labels)]


def samples(watched: Watched) -> float:
    return sum(watched.now("kvitals_target_up").values())
