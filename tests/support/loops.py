"""One test over many cases: it runs all of them and reports every failure together."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def for_each(
    names: str, cases: Iterable[Any] | Callable[[], Iterable[Any]], ids: Callable[[Any], str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Like `pytest.mark.parametrize`, as a loop in one test.

    names: the arguments of the test that a case fills, with commas between them. A case is a value, a tuple of as many
    values as there are names, or a `pytest.param`; a function returns the cases when the test runs. ids: how a case is
    called in the report. The test fails with one line per case that failed, and where there is no case at all.
    """
    arguments = [name.strip() for name in names.split(",")]
    ready = cases if callable(cases) else list(cases)

    def looped(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            listed = list(ready()) if callable(ready) else ready
            assert listed, "no cases: this test would pass whatever the code does"
            failures = []
            for case in listed:
                values = _values(case, len(arguments))
                try:
                    test(**dict(zip(arguments, values, strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    failures.append(f"{_name(case, values, ids)}: {type(error).__name__}: {error}")
            assert not failures, f"{len(failures)} of {len(listed)} cases failed\n" + "\n".join(failures)

        kept = [parameter for name, parameter in signature.parameters.items() if name not in arguments]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return looped


def some_of(cases: Iterable[Any], nth: int, ids: Callable[[Any], str] = str) -> list[Any]:
    """Cases of `pytest.mark.parametrize` of which each nth runs in `make test`, and the others in `make system`.

    For cases that take a second each and are alike: recordings that are replayed. ids: how a case is called.
    """
    listed = list(cases)
    assert len(listed) >= nth, "each nth of these is one or none"
    return [
        pytest.param(case, id=ids(case), marks=() if i % nth == 0 else pytest.mark.system)
        for i, case in enumerate(listed)
    ]


def _values(case: Any, count: int) -> tuple[Any, ...]:
    if hasattr(case, "values") and hasattr(case, "marks"):  # a pytest.param
        return tuple(case.values)
    return (case,) if count == 1 else tuple(case)


def _name(case: Any, values: tuple[Any, ...], ids: Callable[[Any], str] | None) -> str:
    if getattr(case, "id", None) and hasattr(case, "marks"):
        return str(case.id)
    return ids(values[0]) if ids is not None and len(values) == 1 else ", ".join(str(value)[:80] for value in values)
