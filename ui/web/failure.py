"""Why there is no answer, for people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """Why there is no answer, and what a person can do about it. `commands` are for copying."""

    title: str
    detail: str
    todo: str
    commands: tuple[str, ...] = ()


class UnansweredError(Exception):
    """A source has no answer."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.title)
        self.failure = failure

    def __reduce__(self) -> tuple[type[UnansweredError], tuple[Failure]]:
        return UnansweredError, (self.failure,)


class ReplayingError(Exception):
    """A recording is still being replayed: ask again later."""

    def __init__(self, share: float) -> None:
        """`share` of it is done."""
        super().__init__(f"{share:.0%} of the recording is replayed")
        self.share = share
