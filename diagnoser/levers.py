"""Which of a rule's levers are worth offering here, with today's setting and the one to try."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property, partial

import msgspec

from kvitals.diagnoser.judgement import Judgement
from kvitals.diagnoser.questions import Questions
from kvitals.diagnoser.text import fill_known
from kvitals.rules.engine_flags import GUESSED, flag_table
from kvitals.rules.finding import LeverAdvice, LeverSetting
from kvitals.rules.model import TO, Lever, LeverUse, Quantity, SystemSetting
from kvitals.rules.versions import in_range
from kvitals.series.types import Labels

Place = tuple[str, Labels]
"""An entity with its scope."""


class Levers:
    """Chooses levers for findings of one moment.

    Left out is what is in force already or set as it would be, what the engine or its version can not do, what
    contradicts a lever that was offered for the same entity, for what it is part of or for a part of it, and what moves
    nothing of the symptoms that the finding explains. Who is advised first has the choice.
    """

    def __init__(self, ask: Questions) -> None:
        self._ask = ask
        self._judge = ask.judge
        self._span = ask.span
        self._own: dict[Place, set[str]] = {}  # offered for an entity
        self._within: dict[Place, set[str]] = {}  # offered for an entity or a part of it

    def advise(
        self, judgement: Judgement, value: Callable[[str], str], amiss: Collection[Quantity] = ()
    ) -> list[LeverAdvice]:
        """The levers of a fired rule that can help here, in the rule's order; last those of which no figure shows that
        the engine has what they need.

        `value` renders placeholders; `amiss` is what the open symptoms are about, nothing where there are none.
        """
        sure, unproven = [], []
        for use in judgement.rule.levers:
            lever = self._judge.knowledge.levers[use.lever]
            if self._fits(judgement, use, lever, amiss):
                setting, note, risk = self._setting(judgement, lever)
                if setting is None or _is_a_move(lever, setting):
                    self._offer(judgement, lever)
                    whole = partial(self._value, judgement, lever, value)
                    one = _advice(use, lever, whole, setting, note, risk)
                    if lever.proven_when and not self._holds(lever.proven_when, judgement):
                        unproven.append(msgspec.structs.replace(one, title=lever.unproven_title))
                    else:
                        sure.append(one)
        return sure + unproven

    def _value(self, judgement: Judgement, lever: Lever, of_rule: Callable[[str], str], name: str) -> str:
        """What a placeholder in a text about a lever stands for: of the rule, else who the lever is to be pulled on."""
        if name in lever.who and name not in judgement.rule.who:
            return self._ask.largest(judgement, lever.who[name], name)
        return of_rule(name)

    def _fits(self, judgement: Judgement, use: LeverUse, lever: Lever, amiss: Collection[Quantity]) -> bool:
        if amiss and not set(amiss) & set(lever.moves):
            return False
        if (against := self._against.get(lever.name)) and self._offered(judgement) & against:
            return False
        if not self._can(judgement, lever):
            return False
        if lever.in_force and self._holds(lever.in_force, judgement):
            return False
        return all(self._holds(condition, judgement) for condition in (lever.possible, use.when) if condition)

    def _holds(self, condition: str, judgement: Judgement) -> bool:
        return self._ask.number(judgement, condition) is not None

    @cached_property
    def _against(self) -> dict[str, set[str]]:
        """The levers that contradict one another, whichever of the two says so."""
        found: dict[str, set[str]] = {}
        for lever in self._judge.knowledge.levers.values():
            for other in lever.contradicts:
                found.setdefault(lever.name, set()).add(other)
                found.setdefault(other, set()).add(lever.name)
        return found

    def _can(self, judgement: Judgement, lever: Lever) -> bool:
        """Whether the engine has the setting, so far as its system and version are known."""
        if lever.outside or not lever.settings:
            return True
        info = self._judge.info(judgement.entity, self._span.at)
        system, version = info.get("system", ""), info.get("version", "")
        return not system or any(s.system == system and _in_range(s, version) for s in lever.settings)

    def _offer(self, judgement: Judgement, lever: Lever) -> None:
        place = (judgement.rule.scope, judgement.entity)
        self._own.setdefault(place, set()).add(lever.name)
        for around in self._judge.around(judgement, self._span.at).items():
            self._within.setdefault(around, set()).add(lever.name)

    def _offered(self, judgement: Judgement) -> set[str]:
        """What was offered where it would meet a lever of this finding."""
        offered = set(self._within.get((judgement.rule.scope, judgement.entity), ()))
        for place in self._judge.around(judgement, self._span.at).items():
            offered |= self._own.get(place, set())
        return offered

    def _setting(self, judgement: Judgement, lever: Lever) -> tuple[LeverSetting | None, str, str]:
        """The setting of the engine, else why there is none; and the risk of what is set."""
        if not lever.settings:
            return None, "not an engine flag: it is applied outside of the engine", lever.risk
        info = self._judge.info(judgement.entity, self._span.at)
        system, version = info.get("system", ""), info.get("version", "")
        if not system:
            return None, "the engine is not recognised, so its flag is unknown", lever.risk
        for setting in lever.settings:
            if setting.system == system and self._is_the_one(setting, version, judgement):
                return self._render(judgement, setting, _note(setting, info)), "", setting.risk or lever.risk
        elsewhere = ": it is applied outside of the engine" if lever.outside else ""
        return None, f"no setting is known for {system} {version}".strip() + elsewhere, lever.risk

    def _is_the_one(self, setting: SystemSetting, version: str, judgement: Judgement) -> bool:
        return _in_range(setting, version) and (not setting.when or self._holds(setting.when, judgement))

    def _render(self, judgement: Judgement, setting: SystemSetting, note: str) -> LeverSetting:
        def number(text: str) -> str:
            found = self._ask.number(judgement, text) if text else None
            return "" if found is None else f"{found:.12g}"

        now, to = number(setting.now), number(setting.to)
        return LeverSetting(
            flag=setting.flag,
            now=_SWITCH.get(now, now) if setting.value in _SWITCH.values() else now,
            to=_filled(setting.value, to) if setting.value else to,
            restart=setting.restart,
            note=note,
        )


def _is_a_move(lever: Lever, setting: LeverSetting) -> bool:
    """Whether setting it changes something, in the direction of the lever, so far as today's value is known."""
    if not setting.now or setting.now == setting.to:
        return not setting.now
    try:
        rises = float(setting.to) > float(setting.now)
    except ValueError:  # a text, or none
        return True
    return not lever.direction or rises == (lever.direction == "up")


_SWITCH = {"0": "off", "1": "on"}
"""How a fact that is no number is told beside a flag that switches."""


def _filled(value: str, number: str) -> str:
    """A setting's text with its number; empty where that is missing: then there is nothing to paste."""
    return value.replace(TO, number) if number or TO not in value else ""


def _advice(
    use: LeverUse, lever: Lever, value: Callable[[str], str], setting: LeverSetting | None, note: str, risk: str
) -> LeverAdvice:
    return LeverAdvice(
        lever=lever.name,
        title=lever.title,
        why=fill_known(use.why, value),
        does=lever.does,
        does_not_fix=lever.does_not_fix,
        risk=risk,
        cost=lever.cost,
        setting=setting,
        setting_note=note,
        references=list(lever.references),
        restart=setting.restart if setting is not None else lever.restart,
    )


def _note(setting: SystemSetting, info: Mapping[str, str]) -> str:
    """A setting's note, with what is not known about its flag."""
    table, version = flag_table(setting.system), info.get("version", "")
    if not version:
        where = "every version" if setting.versions == ">=0" else setting.versions
        doubt = f"The engine's version is not reported; this flag is for {where}."
    elif info.get("version_source") == GUESSED and table is not None:
        doubt = f"The engine's version is not reported; its metric names are those of {version} or newer."
    elif table is not None and table.is_newer(version):
        doubt = f"{version} is newer than the flags that this kvitals knows (to {table.newest})."
    else:
        doubt = ""
    return f"{doubt} {setting.note}".strip()


def _in_range(setting: SystemSetting, version: str) -> bool:
    """Whether a setting is for a version; one that is not known may be any."""
    return not version or in_range(version, setting.versions)
