"""Every document of a recording is what it was when somebody last read it, as text and as JSON."""

from __future__ import annotations

import pytest

from tests.goldens.documents import NAMES, ROOT, shortened, texts

HOW = "see `python -m tests.goldens`; `make goldens` makes this the golden: read the difference before you commit it"


@pytest.mark.parametrize("name", NAMES)
def test_a_document_says_what_it_did(name: str) -> None:
    for file, text in texts(name).items():
        path = ROOT / file
        assert path.exists(), HOW
        assert text == path.read_text(encoding="utf-8"), HOW


def test_no_golden_is_of_no_document() -> None:
    assert {path.stem for path in ROOT.iterdir()} == set(NAMES)


def test_a_long_list_is_shortened_and_says_by_how_much() -> None:
    assert shortened({"x": list(range(9)), "y": 1 / 3}) == {"x": [0, 1, 2, 3, "and 5 more"], "y": 0.333333}
    assert shortened([[0, 1], [1, 1 / 3]]) == "2 points, the last [1, 0.333333]"
