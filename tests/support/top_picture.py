"""The pictures of `kvitals top` in the documentation, drawn by the command's own screen from recordings.

`python -m tests.support.top_picture` writes them anew.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

from kvitals.app.sources.fleet_source import RecordedFleet
from kvitals.app.sources.recording_reader import span_of
from kvitals.ui.cli.top_app import FleetApp
from tests.support.fleet_documents import HEAVY, PAIR, shown, until
from tests.support.recordings import setup

IMAGES = Path(__file__).parents[2] / "docs" / "images"
STILL, MOVING = "top.svg", "top-incident.svg"
FRAME_SECONDS = 2.5
MOMENTS = (60.0, 70.0, 90.0, 119.0)
"""Of the moving picture, seconds after the recording's start. Its last frame is the opened engine."""

_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_TEXT = re.compile(r"<text[^>]*>([^<]*)</text>")


def texts(svg: str) -> list[str]:
    """What a picture says."""
    return _TEXT.findall(svg)


async def still() -> str:
    """Two engines, one of them sick."""
    app = FleetApp(RecordedFleet(PAIR, setup()))
    async with shown(app, (120, 18)):
        return _drawn(app, "still")


async def moving() -> str:
    """An incident from its beginning to the opened engine."""
    first, _ = span_of(HEAVY)
    source = RecordedFleet(HEAVY, setup(), first + MOMENTS[0])
    app, frames = FleetApp(source), list[str]()
    async with shown(app, (100, 28)) as pilot:
        for before, moment in zip((MOMENTS[0], *MOMENTS), MOMENTS, strict=False):
            app._feed.ask(lambda by=moment - before: source.move(by))  # type: ignore[misc]
            await until(lambda at=moment: _stands(app, first, at), app, pilot)  # type: ignore[misc]
            await pilot.pause()
            frames.append(_drawn(app, f"frame{len(frames)}"))
        await pilot.press("enter")
        await pilot.pause()
        frames.append(_drawn(app, f"frame{len(frames)}"))
    return _animated(frames)


def _stands(app: FleetApp, first: float, moment: float) -> bool:
    return app.document is not None and abs(app.document.window.end - first - moment) < 1


def _drawn(app: FleetApp, name: str) -> str:
    """The screen as SVG, which names no font of another host."""
    svg = re.sub(r"terminal-\d+", name, _FONT.sub("", app.export_screenshot(title="kvitals top")))
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def _animated(frames: Sequence[str]) -> str:
    """One picture of frames that follow each other; the one before the last where nothing moves."""
    opening = re.match(r"<svg[^>]*>", frames[0])
    assert opening is not None
    share, seconds = 100 / len(frames), FRAME_SECONDS * len(frames)
    css = f"@keyframes shown {{ 0% {{ opacity: 1 }} {share:.2f}% {{ opacity: 0 }} 100% {{ opacity: 0 }} }}\n"
    css += f".frame {{ opacity: 0; animation: shown {seconds}s step-end infinite }}\n"
    css += "@media (prefers-reduced-motion) { .frame { animation: none } .last { opacity: 1 } }"
    parts = [opening.group(), f"<style>{css}</style>"]
    for number, frame in enumerate(frames):
        inner = frame[frame.index(">") + 1 : frame.rindex("</svg>")]
        kind = "frame last" if number == len(frames) - 2 else "frame"
        parts.append(f'<g class="{kind}" style="animation-delay: {number * FRAME_SECONDS}s">{inner}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Write both pictures."""
    (IMAGES / STILL).write_text(asyncio.run(still()), encoding="utf-8")
    (IMAGES / MOVING).write_text(asyncio.run(moving()), encoding="utf-8")


if __name__ == "__main__":
    main()
