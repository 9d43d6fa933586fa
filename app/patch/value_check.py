"""Whether a value that an operator gives for a lever fits the flag, and is on the lever's side of today's value."""

from __future__ import annotations

import math

from kvitals.app.patch.lever_change import FlagEdit, PatchError
from kvitals.rules.engine_flags import LARGEST, FlagState, bounds, flag_table, refusal
from kvitals.rules.finding import LeverAdvice, LeverSetting


def check_value(change: FlagEdit, lever: LeverAdvice, system: str, version: str) -> None:
    """Check the value of the lever's flag. What the flag tables do not hold is not checked. system and version: of the
    engine, empty where they are not known. Raises PatchError."""
    setting = lever.setting
    if change.action != "set" or setting is None:
        return
    _check_flag(change, setting, system, version)
    _check_side(change, lever, setting)


def same_value(first: str, second: str) -> bool:
    """Whether two values are equal as numbers, or as texts."""
    one, other = _number(first), _number(second)
    return first == second if one is None or other is None else one == other


def default_of(flag: str, system: str, version: str) -> str:
    """The flag's default in the engine's version, as the flag tables have it; empty where it is not known."""
    return next((state.default for state in _states(flag, system, version)), "")


def _check_flag(change: FlagEdit, setting: LeverSetting, system: str, version: str) -> None:
    states = _states(change.flag, system, version)
    if states and states[0].kind != "value":
        raise PatchError(f"{change.flag} is a switch without a value; leave out --set")
    choices = states[0].choices if states else ()
    if choices and change.value not in choices:
        raise PatchError(f"{change.flag} does not accept {change.value}; choose one of: {', '.join(choices)}")
    limits = bounds(change.flag)
    samples = [setting.now, setting.to, *(state.default for state in states)]
    if limits is None and all(_number(text) is None for text in samples):
        return
    value = _number(change.value)
    if value is None:
        raise PatchError(f"{change.flag} takes a number, not {change.value}; give a number with --set")
    if limits is not None:
        if why := refusal(change.flag, change.value):
            raise PatchError(why)
        return
    if abs(value) > LARGEST:
        raise PatchError(f"{change.flag} does not accept a number as large as {change.value}; give another with --set")
    known = [_number(text) for text in (setting.now, *(state.default for state in states))]
    if value < 0 and not any(number is not None and number < 0 for number in known):
        raise PatchError(f"{change.flag} does not accept a number below zero; give another value with --set")


def _states(flag: str, system: str, version: str) -> list[FlagState]:
    """The flag of the engine's version; empty where the table does not hold it."""
    table = flag_table(system)
    if table is None or not version or table.is_older(version):
        return []
    state = table.at(version).get(flag)
    return [] if state is None else [state]


def _check_side(change: FlagEdit, lever: LeverAdvice, setting: LeverSetting) -> None:
    if setting.now and same_value(change.value, setting.now):
        raise PatchError(f"{change.flag} is {setting.now} today; give another value with --set")
    value, now, target = _number(change.value), _number(setting.now), _number(setting.to)
    if value is None or now is None or target is None or now < 0 or target == now:
        return
    if (value > now) != (target > now):
        side = "above" if target > now else "below"
        raise PatchError(
            f'the lever "{lever.title}" needs a value {side} {setting.now}, which is {change.flag} today, not'
            f" {change.value}; kvitals proposes {setting.to}"
        )


def _number(text: str) -> float | None:
    """The finite number that a text is; None for any other text."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None
