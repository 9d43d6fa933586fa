"""What had severity page earlier in a recording and is over at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvitals.app.sources.losses import SourceLoss
from kvitals.diagnoser.entities import entity_title
from kvitals.diagnoser.judgement import Judgement
from kvitals.diagnoser.text import clock_text
from kvitals.rules.model import Rule
from kvitals.series.types import Labels

MAX_PAGES = 3
_ORDER = ("telemetry", "cause", "symptom")


@dataclass
class EarlierPages:
    """The pages of the moments of a recording, from the first that is judged on."""

    _seen: dict[str, tuple[Rule, Labels, float, float]] = field(default_factory=dict)  # first and last moment

    def add(self, at: float, judgements: Sequence[Judgement]) -> None:
        """Remember what is a page at a moment, in seconds since the epoch."""
        for one in judgements:
            if one.outcome == "fired" and one.rule.severity == "page" and not one.unproven:
                _, _, first, _ = self._seen.get(one.key, (one.rule, one.entity, at, at))
                self._seen[one.key] = (one.rule, one.entity, first, at)

    def ended(self, judgements: Sequence[Judgement]) -> list[SourceLoss]:
        """A sentence for each page that is not one at the end any more: those that say why first, symptoms only where
        nothing says why."""
        open_ = {one.key for one in judgements if one.outcome == "fired"}
        over = [seen for key, seen in self._seen.items() if key not in open_ and seen[2] < seen[3]]
        over.sort(key=lambda seen: (_ORDER.index(seen[0].kind), seen[2]))
        told = [seen for seen in over if seen[0].kind != "symptom"] or over
        return [SourceLoss(_text(*seen), hides=False) for seen in told[:MAX_PAGES]]


def _text(rule: Rule, entity: Labels, first: float, last: float) -> str:
    whose = entity_title(rule.scope, entity)
    lasted = f"from {clock_text(first)} to {clock_text(last)}"
    return f"earlier: {rule.code} {rule.title} ({whose}), {lasted}; --to judges that time"
