"""The pictures of the documentation, taken of the page on recordings that ship.

python -m tests.browser.pictures [docs/images]
"""

from __future__ import annotations

import io
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from selenium import webdriver

from kvitals.app.page_settings import PageSettings
from tests.browser.page import chromium, resize, served, visit, wait_for, wait_until

COLOURS = 128
MAX_BYTES = 150_000
CASCADE, HEAVY = "demo:eviction_cascade", "demo:heavy_tenant"


@dataclass(frozen=True)
class Picture:
    """What is on it: a page of a source, at a size of the screen, once a text and some charts are there."""

    name: str
    page: str
    source: str
    said: str
    charts: int
    height: int
    width: int = 1280
    dark: bool = False


PICTURES = (
    Picture("web", "", HEAVY, "What to do, in this order", 4, 1000),
    Picture("web-timeline", "timeline", CASCADE, "Pick a window", 4, 900),
    Picture("web-tenants", "tenants", CASCADE, "Who paid for whom", 4, 930),
    Picture("web-cascades", "cascades", CASCADE, "Stage 4 of 5", 1, 620, dark=True),
    Picture("web-requests", "requests", CASCADE, "what the time went into", 3, 1000),
    Picture("web-phone", "", CASCADE, "What to do, in this order", 4, 900, width=390),
)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    with served(PageSettings(api="http://127.0.0.1:1")) as url, chromium() as driver:
        for one in PICTURES:
            taken = _taken(driver, url, one)
            path = folder / f"{one.name}.png"
            path.write_bytes(taken)
            print(f"{path} {len(taken) / 1000:.0f} KB")
            if len(taken) > MAX_BYTES:
                raise SystemExit(f"{path} is larger than {MAX_BYTES} bytes")


def _taken(driver: webdriver.Chrome, url: str, one: Picture) -> bytes:
    visit(driver, f"{url}/?page={one.page}&source={one.source.replace(':', '%3A')}", width=one.width, dark=one.dark)
    resize(driver, one.width, one.height)
    wait_for(driver, one.said)
    drawn = "return document.querySelectorAll('svg.marks').length"
    wait_until(lambda: driver.execute_script(drawn) >= one.charts, "the charts are drawn")
    time.sleep(3)
    small = io.BytesIO()
    with Image.open(io.BytesIO(driver.get_screenshot_as_png())) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


if __name__ == "__main__":
    main()
