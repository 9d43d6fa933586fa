"""What is asked of a fleet: how much, how long, how fast."""

from __future__ import annotations

from dataclasses import dataclass

LONG_PROMPT, LONG_OUTPUT = 2000, 500
"""Tokens, on average: the borders between kinds of traffic (as rule CAP07 has them)."""


@dataclass(frozen=True)
class Lengths:
    """Tokens. p95, p99: at least the mean where they are not known. note: how these two were come by, empty where they
    are exact."""

    mean: float
    p95: float
    p99: float
    note: str = ""


@dataclass(frozen=True)
class Workload:
    """peak, mean: requests a second; mean is None where only a peak is known. cached: share of prompt tokens that a
    prefix cache has. ttft, itl: objectives of the p99, seconds; infinite where nobody waits. source: in words."""

    peak: float
    mean: float | None
    prompt: Lengths
    output: Lengths
    cached: float
    ttft: float
    itl: float
    source: str

    @property
    def kind(self) -> str:
        """Which of the four kinds of traffic it is, and what runs out first."""
        long_prompt, long_output = self.prompt.mean > LONG_PROMPT, self.output.mean > LONG_OUTPUT
        if long_prompt and long_output:
            return "agents: long prompts and long answers; KV memory binds first"
        if long_prompt:
            return "retrieval: long prompts and short answers; prefill binds first"
        if long_output:
            return "code and reasoning: long answers; decoding binds first"
        return "chat: short prompts and short answers; users wait for the first token"

    @property
    def new_tokens(self) -> float:
        """Prompt tokens that are computed, on average."""
        return self.prompt.mean * (1 - self.cached)

    @property
    def context(self) -> float:
        """Tokens of a sequence half way through its answer, on average."""
        return self.prompt.mean + self.output.mean / 2

    @property
    def longest(self) -> float:
        """Tokens that memory is reserved for: of a sequence at the 95th percentile, at its end."""
        return self.prompt.p95 + self.output.p95
