"""Reading a page with its map, and making pages of more ranks out of pages of one."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from kvitals.agent.collectors.page_parser import PageParser
from kvitals.agent.collectors.status import Identity
from kvitals.agent.families import Translator
from kvitals.rules.engine_map import load_map, systems
from kvitals.series.types import METRIC_NAME, Labels, Matcher, MatchOp, is_stale
from kvitals.series.window import Window

ROOT = Path(__file__).parents[2] / "fixtures" / "exposition"
SAMPLE = re.compile(r"(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
Rewrite = Callable[[str, Mapping[str, str], float], list[tuple[dict[str, str], float]]]
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Read:
    """A target at one address, fed with pages a second apart."""

    def __init__(self) -> None:
        self.window = Window(1000.0, 100_000)
        maps = [load_map(system) for system in systems()]
        self.translator = Translator(self.window, "page", Identity("h:1"), maps)
        self.parser, self.t = PageParser(), 0.0

    def page(self, text: str) -> "Read":
        self.t += 1.0
        outcome = self.translator.good(self.t, self.parser.parse(text.encode()), 0.0, 0)
        assert outcome.reason == "ok", outcome
        return self

    def series(self) -> dict[Labels, float]:
        """Every series with its value now, less what is said of the scrape."""
        found = {}
        for frame in self.window.select([Matcher(METRIC_NAME, MatchOp.NE, "")], 0, 1e12):
            gone = is_stale(frame.values)
            for i, labels in enumerate(frame.labels):
                if not gone[-1, i] and not labels.name.startswith(("kvitals_scrape_", "kvitals_target_state")):
                    found[labels] = float(frame.values[-1, i])
        return found

    def now(self, family: str, **labels: str) -> dict[str, float]:
        """The values of one family by engine; labels narrow it down to one series of each."""
        return {
            series["engine"]: value
            for series, value in self.series().items()
            if series.name == family and labels.items() <= dict(series).items()
        }


def stored(name: str) -> str:
    [path] = [path for path in ROOT.rglob("*.prom") if path.stem == name]
    return path.read_text(encoding="utf-8")


def relabelled(
    text: str, rewrite: Callable[[str, Mapping[str, str], float], list[tuple[dict[str, str], float]]]
) -> str:
    """A page with each sample replaced by those that `rewrite` makes of its name, labels and value."""
    lines = []
    for line in text.splitlines():
        sample = SAMPLE.match(line) if not line.startswith("#") else None
        if sample is None:
            lines.append(line)
            continue
        labels = dict(LABEL.findall(sample["labels"] or ""))
        for said, value in rewrite(sample["name"], labels, float(sample["value"])):
            inner = ",".join(f'{key}="{text}"' for key, text in said.items())
            lines.append(f"{sample['name']}{{{inner}}} {value!r}" if inner else f"{sample['name']} {value!r}")
    return "\n".join(lines) + "\n"
