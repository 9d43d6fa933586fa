"""A cycle goes on when a moment can not be judged."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

from kvitals.agent.workers import Worker
from kvitals.app.pipeline import FAST_SECONDS, SLOW_SECONDS, Pipeline
from kvitals.app.runtime.cycle import judge
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.series.promql import PromQLError


async def test_a_query_that_can_not_be_answered_leaves_the_moment_out() -> None:
    """A query's time is by the clock, so a machine that stands still for some seconds makes one fail."""

    def observe(span: EvaluationSpan) -> Iterator[None]:
        yield
        raise PromQLError("the query took too long")

    assert await judge(cast(Pipeline, SimpleNamespace(observe_steps=observe)), 1.0, Worker("judging")) == (
        "Not judged this time: the query took too long."
    )


async def test_a_moment_that_can_be_judged_is() -> None:
    seen: list[EvaluationSpan] = []

    def observe(span: EvaluationSpan) -> Iterator[None]:
        yield
        seen.append(span)

    pipeline = SimpleNamespace(observe_steps=observe, verdict=lambda: "All is well.")
    assert await judge(cast(Pipeline, pipeline), 2.0, Worker("judging")) == "All is well."
    assert seen == [EvaluationSpan(2.0, FAST_SECONDS, SLOW_SECONDS)]
