"""The documents of a review, each put in its place whole."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import msgspec

from kvitals.diagnoser.review.result import Review
from kvitals.series.files import replace_file
from kvitals.series.json_text import encode_json
from kvitals.ui.review.markdown import markdown
from kvitals.ui.review.page import page
from kvitals.ui.review.tables import write_tables

TABLES = "tables"


def write(review: Review, folder: Path) -> list[Path]:
    """Into `folder`, which is made; what an earlier review left there is replaced. Returns what was written.

    Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "review.html": page(review).encode(),
        "review.md": markdown(review).encode(),
        "review.json": msgspec.json.format(encode_json(review), indent=1) + b"\n",
    }
    with tempfile.TemporaryDirectory(dir=folder, prefix=".review-") as name:
        made = Path(name)
        (made / TABLES).mkdir()
        write_tables(review, made / TABLES)
        shutil.rmtree(folder / TABLES, ignore_errors=True)
        (made / TABLES).replace(folder / TABLES)
    for file, text in texts.items():
        replace_file(folder / file, text)
    return [*(folder / file for file in texts), folder / TABLES]
