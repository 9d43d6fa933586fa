"""Pictures of boards on replayed recordings, drawn by Grafana's own published components in a headless Chromium.

Each panel shows the first of the named recordings on which it draws, in that recording's time range. A panel that draws
on none of them shows its text for missing data, and the command names it.

    cd /tmp/pictures        # 430 MB of packages; nothing of it is in the repository
    npm install --legacy-peer-deps @grafana/ui@13.2.2 @grafana/data@13.2.3 @grafana/schema@13.2.3 @grafana/i18n \\
        react@18 react-dom@18 rxjs esbuild
    cp REPOSITORY/tests/boards/pictures/draw.jsx .
    node_modules/esbuild/bin/esbuild draw.jsx --bundle --format=iife --outfile=draw.js \\
        --loader:.svg=dataurl --loader:.woff2=dataurl --loader:.ttf=dataurl \\
        '--define:process.env.NODE_ENV="production"' --define:global=window
    cd REPOSITORY && python -m tests.boards.pictures.shoot /tmp/pictures \\
        overview=heavy_tenant,pd_healthy kv=thrash gpu=gpu      # without boards: every board on every recording
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvitals.dashboards import boards
from kvitals.dashboards.queries import readable
from kvitals.rules.loader import load
from kvitals.series.promql import Vector, evaluate, evaluate_range
from tests.boards.sources import GPU, LOOPED, RECORDINGS, Replayed, replays

STEP = 2.0
FIRST = ("heavy_tenant", "thrash", GPU, "pd_healthy", "tenants", "pair")
EVERY = (*FIRST, *(name for name in (*RECORDINGS, LOOPED) if name not in FIRST))
"""Recordings, those with much to see before the others."""

ROW_PIXELS, WIDTH, MARGIN = 38, 1280, 60
_PAGE = """<!doctype html><meta charset=utf-8>
<style>body {{ margin: 0; background: #111217; color: #ccccdc; font-family: Inter, Helvetica, Arial }}</style>
<link rel=stylesheet href=draw.css><div id=root></div>
<script>window.BOARD = {board}; window.DATA = {data}; window.RANGES = {ranges}</script><script src=draw.js></script>"""


Answers = dict[str, list[dict[str, Any]]]
"""The series of a panel's queries, by refId."""


def shoot(folder: Path, board: dict[str, Any], sources: Sequence[Replayed]) -> tuple[Path, list[str]]:
    """A picture of a board, as wide as a laptop, and the titles of panels that draw on none of the sources."""
    name, board = board["uid"], opened(board)
    drawn = {panel["id"]: _panel(panel, sources) for panel in board["panels"]}
    told = {
        "board": board,
        "data": {number: answers for number, (answers, _) in drawn.items()},
        "ranges": {number: [on.start, on.end] for number, (_, on) in drawn.items()},
    }
    page, picture = folder / f"{name}.html", folder / f"{name}.png"
    page.write_text(_PAGE.format(**{key: json.dumps(value) for key, value in told.items()}))
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in board["panels"]) * ROW_PIXELS + MARGIN
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=8000")
    size = (f"--window-size={WIDTH},{height}", f"--screenshot={picture}")
    subprocess.run(["chromium", *options, *size, f"file://{page}"], check=True, capture_output=True, timeout=120)
    empty = [p["title"] for p in board["panels"] if p.get("targets") and not _draws(drawn[p["id"]][0])]
    return picture, empty


def opened(board: dict[str, Any]) -> dict[str, Any]:
    """The board as it is once every row is opened."""
    panels: list[dict[str, Any]] = []
    down = 0
    for panel in board["panels"]:
        panels.append(_lower({**panel, "panels": []} if panel["type"] == "row" else panel, down))
        inside = panel.get("panels", [])
        panels += [_lower(one, down) for one in inside]
        if inside:
            down += max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in inside) - panel["gridPos"]["y"] - 1
    return {**board, "panels": panels}


def _lower(panel: dict[str, Any], down: int) -> dict[str, Any]:
    return {**panel, "gridPos": {**panel["gridPos"], "y": panel["gridPos"]["y"] + down}}


def _panel(panel: dict[str, Any], sources: Sequence[Replayed]) -> tuple[Answers, Replayed]:
    """The answers to a panel's queries on the first source that has any, else on the first source."""
    for on in sources:
        answers = {target["refId"]: _answer(target, on) for target in panel.get("targets", [])}
        if _draws(answers):
            return answers, on
    return {}, sources[0]


def _draws(answers: Answers) -> bool:
    """Whether there is anything to see: of a heat map, a bucket that is not zero."""
    several = [one for series in answers.values() for one in series]
    return any(value if "le" in one["labels"] else value is not None for one in several for value in one["values"])


def _answer(target: dict[str, Any], on: Replayed) -> list[dict[str, Any]]:
    expr, window = readable(target["expr"]), on.pipeline
    if target["instant"]:
        now = evaluate(expr, window, on.end)
        found = [(labels, [on.end], [value]) for labels, value in now] if isinstance(now, Vector) else []
    else:
        course = evaluate_range(expr, window, on.start, on.end, STEP)
        found = [(s.labels, s.times.tolist(), s.values.tolist()) for s in course]
    return [
        {"labels": dict(labels), "times": times, "values": [None if v != v else float(v) for v in values]}
        for labels, times, values in found
    ]


def main() -> None:
    folder, pairs = Path(sys.argv[1]), [pair.split("=") for pair in sys.argv[2:]]
    knowledge = load()
    built = {Path(path).stem: board for path, board in boards.built(knowledge, "runbooks").items()}
    wanted = {name: recordings.split(",") for name, recordings in pairs} or {key: list(EVERY) for key in built}
    replayed = replays(knowledge, {recording for recordings in wanted.values() for recording in recordings})
    for name, recordings in wanted.items():
        picture, empty = shoot(folder, built[name], [replayed[recording] for recording in recordings])
        print(f"{picture}: {f'no data for {len(empty)} panels: {empty}' if empty else 'every panel draws'}")


if __name__ == "__main__":
    main()
