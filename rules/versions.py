"""Version ranges as the engine maps and levers write them: `>=0.9.2,<0.12`; all bounds must hold."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import lru_cache

_OPERATORS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq,
}  # fmt: skip
_BOUND = re.compile(r"(>=|<=|==|>|<)\s*([0-9]+(?:\.[0-9]+)*)")


@lru_cache(maxsize=1024)  # ranges of flags name the same hundred releases
def release(version: str) -> tuple[int, ...]:
    """The numeric release of a version, padded to four parts: `0.10.1.post1+cpu` is (0, 10, 1, 0)."""
    match = re.match(r"v?([0-9]+(?:\.[0-9]+)*)", version)
    parts = [int(p) for p in match.group(1).split(".")][:4] if match else []
    return tuple(parts + [0] * (4 - len(parts)))


def in_range(version: str, versions: str) -> bool:
    """Whether a version lies in a range. Raises ValueError for a range that can not be read."""
    for bound in filter(None, (b.strip() for b in versions.split(","))):
        match = _BOUND.fullmatch(bound)
        if match is None:
            raise ValueError(f"`{bound}` is not a version bound: write >=, <=, >, < or == and a release")
        if not _OPERATORS[match.group(1)](release(version), release(match.group(2))):
            return False
    return True
