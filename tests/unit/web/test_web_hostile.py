"""Recordings that somebody made to do harm: refused with a reason, or shown as text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kvitals.series.recordings import Record
from kvitals.ui.web import source_registry
from tests.unit.web.hostile import NAME, SOURCE, deep, empty, named, written
from tests.unit.web.looking import run, words
from tests.unit.web.test_web_views import PAGES

CODE = re.compile(r"`[^`]*`")


def upload(path: Path, change: Callable[[Record], Record]) -> str:
    return source_registry.upload(path.name, written(path, change).read_bytes())


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("hostile")
    return upload(folder / "<img src=x onerror=alert(1)>.kvcap", named)


@pytest.mark.parametrize("page", PAGES)
def test_hostile_names_and_numbers_break_no_page_and_are_text(hostile: str, page: str) -> None:
    app = run(page, source=hostile)
    said = [CODE.sub("", str(e.value)) for e in (*app.markdown, *app.caption)]
    assert not [text for text in said if "<script>" in text or "](http" in text], "it would be more than text"
    if page == "fleet":
        assert NAME in list(app.dataframe[0].value["model"])


@pytest.mark.parametrize("change", [deep, empty])
def test_a_recording_of_nonsense_is_refused_or_says_that_it_knows_nothing(
    change: Callable[[Record], Record], tmp_path: Path
) -> None:
    place = upload(tmp_path / "nonsense.kvcap", change)
    said = words(run(source=place))
    assert "This recording cannot be shown" in said or "Unknown" in said


def test_the_verdict_states_what_could_not_be_read() -> None:
    place = source_registry.upload("damaged.kvcap", SOURCE.read_bytes() + b"more")
    for page in ("", "sources"):
        assert "continues after its end mark" in words(run(page, source=place))


@pytest.mark.parametrize("cut", [0, 1, 7, 500, -10])
def test_a_file_that_is_cut_or_none(cut: int) -> None:
    data = SOURCE.read_bytes()
    place = source_registry.upload("cut.kvcap", data[:cut] if cut else b"\x89KVCAP\r\n" + b"\xff" * 5_000)
    said = words(run(source=place))
    assert "This recording cannot be shown" in said or cut == -10
