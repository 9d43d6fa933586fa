"""The pictures of the documentation, taken of the page on recordings that ship.

python -m tests.browser.pictures [docs/images] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import io
import time
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from selenium import webdriver

from kvitals.app.page_settings import PageSettings
from tests.browser.page import chromium, resize, served, visit, wait_for, wait_until

COLOURS = 256
MAX_BYTES = 150_000
WIDE, PHONE = (1280, 1000), (390, 844)
SHEET_HEIGHT, GAP = 500, 12
"""Pixels of a sheet: its height, and between two looks."""

CASCADE, HEAVY = "demo:eviction_cascade", "demo:heavy_tenant"


@dataclass(frozen=True)
class Picture:
    """What is on it: a page of a source, once a text and some charts are there. `sheet`: in light, in dark and on a
    phone beside each other; else alone, at a size of the screen."""

    name: str
    page: str
    source: str
    said: str
    charts: int
    height: int = WIDE[1]
    width: int = WIDE[0]
    dark: bool = False
    sheet: bool = False


def _sheet(page: str, said: str, charts: int) -> Picture:
    return Picture(f"page-{page or 'triage'}", page, CASCADE, said, charts, sheet=True)


PICTURES = (
    Picture("web", "", HEAVY, "What to do, in this order", 4),
    Picture("web-timeline", "timeline", CASCADE, "Select a window", 4, 900),
    Picture("web-tenants", "tenants", CASCADE, "Who paid for whom", 4, 930),
    Picture("web-cascades", "cascades", CASCADE, "Stage 4 of 5", 1, 620, dark=True),
    Picture("web-requests", "requests", CASCADE, "what the time went into", 3),
    Picture("web-phone", "", CASCADE, "What to do, in this order", 4, PHONE[1], width=PHONE[0]),
    _sheet("", "What to do, in this order", 4),
    _sheet("timeline", "Select a window", 4),
    _sheet("tenants", "Who paid for whom", 3),
    _sheet("cache", "Hit rate at other sizes", 2),
    _sheet("cascades", "Stage 4 of 5", 1),
    _sheet("requests", "what the time went into", 3),
    _sheet("fleet", "with any finding", 1),
    _sheet("engine", "KV usage p90", 4),
    _sheet("efficiency", "too short for a review", 0),
    Picture(
        "page-what-if", "what-if&lever=raise-kv-budget", CASCADE, "Measured and simulated both describe", 1, sheet=True
    ),
    _sheet("size", "Size it", 0),
    _sheet("rules", "What it sees", 0),
    _sheet("sources", "Incidents that ship", 0),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/images"))
    parser.add_argument("--only", nargs="+", choices=[one.name for one in PICTURES])
    args = parser.parse_args()
    with served(PageSettings(api="http://127.0.0.1:1")) as url, chromium() as driver:
        for one in PICTURES:
            if args.only and one.name not in args.only:
                continue
            taken = _small(_sheet_of(driver, url, one) if one.sheet else _taken(driver, url, one))
            path = args.folder / f"{one.name}.png"
            path.write_bytes(taken)
            print(f"{path} {len(taken) / 1000:.0f} KB", flush=True)
            if len(taken) > MAX_BYTES:
                raise SystemExit(f"{path} is larger than {MAX_BYTES} bytes")


def _sheet_of(driver: webdriver.Chrome, url: str, one: Picture) -> Image.Image:
    """Light, dark and phone beside each other."""
    looks = [(*WIDE, False), (*WIDE, True), (*PHONE, False)]
    images = []
    for width, height, dark in looks:
        image = _taken(driver, url, Picture(one.name, one.page, one.source, one.said, one.charts, height, width, dark))
        images.append(image.resize((round(image.width * SHEET_HEIGHT / image.height), SHEET_HEIGHT)))
    sheet = Image.new("RGB", (sum(image.width + GAP for image in images) - GAP, SHEET_HEIGHT), "#888888")
    at = 0
    for image in images:
        sheet.paste(image, (at, 0))
        at += image.width + GAP
    return sheet


def _taken(driver: webdriver.Chrome, url: str, one: Picture) -> Image.Image:
    visit(driver, f"{url}/?page={one.page}&source={one.source.replace(':', '%3A')}", width=one.width, dark=one.dark)
    resize(driver, one.width, one.height)
    wait_for(driver, one.said)
    drawn = "return document.querySelectorAll('svg.marks').length"
    wait_until(lambda: driver.execute_script(drawn) >= one.charts, "the charts are drawn")
    time.sleep(1.5)
    return Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")


def _small(image: Image.Image) -> bytes:
    small = io.BytesIO()
    image.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


if __name__ == "__main__":
    main()
