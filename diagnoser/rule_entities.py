"""The entities that a rule is for, kept from one moment to the next while they are the same."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from kvitals.diagnoser.judgement import Judgement
from kvitals.series.types import Labels


class RuleEntity(msgspec.Struct, frozen=True):
    """A rule and an entity that it is for. `key`: of what is remembered of them. `clear` and `unknown`: the usual
    judgements; their reasons are calculated on request, for the latest moment.

    The garbage collector must see it: both judgements hold their judge, which holds the pairs.
    """

    entity: Labels
    key: str
    clear: Judgement
    unknown: Judgement
    in_front: bool


@dataclass
class RuleEntities:
    """A rule and all entities of its scope. `told`: a judgement of each; those at `places` are made anew each time."""

    told: list[Judgement] = field(default_factory=list)
    not_for: list[str] = field(default_factory=list)  # keys of the others
    places: list[int] = field(default_factory=list)
    here: list[RuleEntity] = field(default_factory=list)
    entities: list[Labels] = field(default_factory=list)  # of `here`
