"""The pictures of `kvitals top` say what the command shows."""

from __future__ import annotations

from tests.support.top_picture import IMAGES, MOVING, STILL, moving, still, texts


async def test_the_still_picture_is_what_top_shows() -> None:
    assert texts((IMAGES / STILL).read_text(encoding="utf-8")) == texts(await still())


async def test_the_moving_picture_is_what_top_shows() -> None:
    svg = (IMAGES / MOVING).read_text(encoding="utf-8")
    assert texts(svg) == texts(await moving())
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "").replace("https://www.textualize.io", "")
