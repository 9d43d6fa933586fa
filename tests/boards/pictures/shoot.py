"""Pictures of boards on replayed recordings, drawn by Grafana's own published components in a headless Chromium.

    cd /tmp/pictures        # 430 MB of packages; nothing of it is in the repository
    npm install --legacy-peer-deps @grafana/ui@13.2.2 @grafana/data@13.2.3 @grafana/schema@13.2.3 @grafana/i18n \\
        react@18 react-dom@18 rxjs esbuild
    cp REPOSITORY/tests/boards/pictures/draw.jsx .
    node_modules/esbuild/bin/esbuild draw.jsx --bundle --format=iife --outfile=draw.js \\
        --loader:.svg=dataurl --loader:.woff2=dataurl --loader:.ttf=dataurl \\
        '--define:process.env.NODE_ENV="production"' --define:global=window
    cd REPOSITORY && python -m tests.boards.pictures.shoot /tmp/pictures overview=heavy_tenant kv=thrash gpu=gpu
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from kvitals.dashboards import boards
from kvitals.dashboards.queries import readable
from kvitals.rules.loader import load
from kvitals.series.promql import Vector, evaluate, evaluate_range
from tests.boards.sources import Replayed, replays

STEP = 2.0
ROW_PIXELS, WIDTH, MARGIN = 38, 1280, 60
_PAGE = """<!doctype html><meta charset=utf-8>
<style>body {{ margin: 0; background: #111217; color: #ccccdc; font-family: Inter, Helvetica, Arial }}</style>
<link rel=stylesheet href=draw.css><div id=root></div>
<script>window.BOARD = {board}; window.DATA = {data}; window.RANGE = {range}</script><script src=draw.js></script>"""


def shoot(folder: Path, board: dict[str, Any], on: Replayed) -> Path:
    """A picture of a board, as wide as a laptop."""
    name = board["uid"]
    data = {panel["id"]: {t["refId"]: _answer(t, on) for t in panel.get("targets", [])} for panel in board["panels"]}
    told = {"board": board, "data": data, "range": [on.start, on.end]}
    page, picture = folder / f"{name}.html", folder / f"{name}.png"
    page.write_text(_PAGE.format(**{key: json.dumps(value) for key, value in told.items()}))
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in board["panels"]) * ROW_PIXELS + MARGIN
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=8000")
    size = (f"--window-size={WIDTH},{height}", f"--screenshot={picture}")
    subprocess.run(["chromium", *options, *size, f"file://{page}"], check=True, capture_output=True, timeout=120)
    return picture


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
    folder, wanted = Path(sys.argv[1]), [pair.split("=") for pair in sys.argv[2:]]
    knowledge = load()
    built, replayed = boards.built(knowledge, "runbooks"), replays(knowledge, {recording for _, recording in wanted})
    for name, recording in wanted:
        print(shoot(folder, built[f"boards/{name}.json"], replayed[recording]))


if __name__ == "__main__":
    main()
