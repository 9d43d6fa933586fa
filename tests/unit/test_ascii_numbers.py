"""Numbers in texts from outside have ASCII digits: `time=٣` was answered as the third second of 1970."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvitals.agent.collectors import engine_log, otlp_json, page_parser, page_reading
from kvitals.agent.exports import wire
from kvitals.agent.requests import lines, spans
from kvitals.app import moments
from kvitals.app.identity import without_rank
from kvitals.app.notify.sending import asked_pause
from kvitals.config import checks, toml_reader
from kvitals.series.bucket_bound import bucket_bound

ROOT = Path(__file__).parents[2]
OTHERS = ["٣", "３", "१", "1٣", "1_0", "²"]
NOTHING: tuple[object, ...] = (None, 0.0, "x/")

READERS: dict[str, Callable[[str], object]] = {
    "query's time": wire.read_time,
    "query's duration": lambda text: wire.read_duration(f"{text}s"),
    "metrics page": page_parser._number,
    "label as a fact": page_reading._fact,
    "engine log": engine_log._number,
    "span's attribute": spans._seconds,
    "request log": lines._number,
    "OTLP in JSON": otlp_json._whole,
    "OTLP double in JSON": otlp_json._double,
    "Retry-After": lambda text: asked_pause({"Retry-After": text}, 0.0),
    "bucket's bound": bucket_bound,
    "moment": lambda text: moments._offset(text, "--at"),
    "unix time": moments._moment,
    "duration in the configuration": lambda text: toml_reader._seconds(f"{text}s"),
    "port in the configuration": lambda text: checks.host_and_port(f"a:{text}"),
    "rank": lambda text: without_rank(f"x/{text}").removesuffix(text),
}


@pytest.mark.parametrize("text", OTHERS)
@pytest.mark.parametrize("read", READERS.values(), ids=list(READERS))
def test_digits_of_other_scripts_are_no_number(read: Callable[[str], object], text: str) -> None:
    try:
        found = read(text)
    except Exception:  # what a reader raises is its own
        return
    assert found in NOTHING


@pytest.mark.parametrize("read", READERS.values(), ids=list(READERS))
def test_ascii_digits_are_a_number(read: Callable[[str], object]) -> None:
    assert read("12") not in (None, 0.0, "x/")


def test_patterns_for_text_from_outside_have_ascii_digits() -> None:
    files = [p for package in ("agent", "app", "config", "series") for p in sorted((ROOT / package).rglob("*.py"))]
    assert [found for path in files for found in _digits(path)] == []


def _digits(path: Path) -> Iterator[str]:
    """Patterns of texts in which digits of any script are digits."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    for call in calls:
        if not (isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)):
            continue
        if call.func.value.id == "re" and not any("re.ASCII" in ast.unparse(one) for one in call.args):
            texts = [
                one.value for one in ast.walk(call) if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
            if any(re.search(r"\\d", text) for text in texts):
                yield f"{path.relative_to(ROOT)}:{call.lineno}"
