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


class NotYetError(Exception):
    """The answer is being made: ask again later."""

    def __init__(self, waited: float = 0.0, share: float | None = None) -> None:
        """`waited`: seconds since it began. `share` of it is done, where that is known."""
        super().__init__(f"an answer has been pending for {waited:.0f} s")
        self.waited, self.share = waited, share
