"""Flames as files of other programs: speedscope's JSON, and folded stacks as flamegraph.pl and inferno read them.

The formats: https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources (version 0.0.1) and
https://github.com/brendangregg/FlameGraph#2-fold-stacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvitals.agent.requests.first_token_flame import FirstTokenFlame, FlameDifference, FlameStack
from kvitals.app.escaping.plain import line

MICROSECONDS = 1e6


def profiles(flame: FirstTokenFlame | FlameDifference) -> Mapping[str, Sequence[FlameStack]]:
    """The stacks to draw, by the title of their drawing."""
    if isinstance(flame, FirstTokenFlame):
        return {"time to first token of all requests together": flame.stacks}
    return {"longer, seconds a request": flame.more, "shorter, seconds a request": flame.less}


def folded_stacks(flame: FirstTokenFlame | FlameDifference) -> str:
    """A line a stack with its microseconds. Of a difference: what takes longer; folded stacks have no minus."""
    stacks = flame.stacks if isinstance(flame, FirstTokenFlame) else flame.more
    lines = (f"{';'.join(map(_frame, stack.frames))} {round(stack.seconds * MICROSECONDS)}" for stack in stacks)
    return "".join(f"{line}\n" for line in lines)


def speedscope(flame: FirstTokenFlame | FlameDifference, name: str) -> dict[str, Any]:
    """A document of speedscope. name: of what it is drawn from."""
    shown = profiles(flame)
    frames = list(dict.fromkeys(frame for stacks in shown.values() for stack in stacks for frame in stack.frames))
    numbers = {frame: i for i, frame in enumerate(frames)}
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": line(name),
        "exporter": "kvitals",
        "shared": {"frames": [{"name": line(frame)} for frame in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": title,
                "unit": "seconds",
                "startValue": 0,
                "endValue": sum(stack.seconds for stack in stacks),
                "samples": [[numbers[frame] for frame in stack.frames] for stack in stacks],
                "weights": [stack.seconds for stack in stacks],
            }
            for title, stacks in shown.items()
        ],
    }


def _frame(text: str) -> str:
    """A frame as folded stacks can have it: they end a frame at a semicolon and a stack at a line feed."""
    return line(text).replace(";", ",")
