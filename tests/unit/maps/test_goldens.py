"""What the maps read on every page is what it was when somebody last looked at it."""

from tests.goldens.pages import ROOT, Page, golden, pages
from tests.support.loops import for_each

PAGES = pages()
HOW = "see `python -m tests.goldens`, and with --write it becomes the golden"


@for_each("page", PAGES, ids=lambda page: page.name)
def test_a_page_means_what_it_did(page: Page):
    path = ROOT / f"{page.name}.txt"
    assert path.exists(), HOW
    assert golden(page) == path.read_text(encoding="utf-8"), HOW


def test_names_of_pages_are_their_own():
    names = [page.name for page in PAGES]
    assert len(set(names)) == len(names)


def test_no_golden_is_of_no_page():
    assert {path.stem for path in ROOT.glob("*.txt")} == {page.name for page in PAGES}


def test_values_are_shown_of_captured_pages_only():
    for path in ROOT.glob("*.txt"):
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        bare = [line for line in lines if line.startswith("kvitals_") and line.endswith("}")]
        assert bool(bare) != (first == "origin: captured") or len(lines) == 1, path.name
