"""Log maps: those that ship, and what is wrong with others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvitals.rules.log_map import formats, load_log_map, shipped_log_map

DOCUMENT = (Path(__file__).parents[3] / "docs" / "request-logs.md").read_text()


@pytest.mark.parametrize("name", formats())
def test_what_ships_can_be_read(name: str) -> None:
    found = shipped_log_map(name)
    assert found.system == name and found.source
    assert found.tenant and found.ids and found.where
    assert f'format = "{name}"' in DOCUMENT


def test_the_mapping_of_the_document_is_good(tmp_path: Path) -> None:
    (text,) = [block for block in re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL) if block.startswith("system:")]
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert load_log_map(path).system == "our_gateway"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected a mapping"),
        ("system: x\ntitle: X\n", "name the field of a time"),
        ("system: x\ntitle: X\nfields: {start: t}\nextra: 1\n", "unknown field `extra`"),
        ("system: x\ntitle: X\nfields: {begin: t}\n", "Invalid enum value 'begin'"),
        ("system: X y\ntitle: X\nfields: {start: t}\n", "matching regex"),
        ("system: x\ntitle: X\nfields: {start: {key: t, unit: minutes}}\n", "Invalid enum value 'minutes'"),
        ("system: x\ntitle: X\nfields: {start: t, finish: response.content}\n", "may contain user text"),
        (
            "system: x\ntitle: X\nfields: {start: t}\nids: {request: headers.authorization}\n",
            "may contain user text",
        ),
        ("system: x\ntitle: X\nfields: {start: t, error: messages}\n", "may contain user text"),
        ("system: x\ntitle: X\nfields: {start: [t, *a]}\n", "not valid YAML|aliases"),
        ("system: [\n", "not valid YAML"),
        ("system: x\ntitle: X\nfields:\n  start: " + "[" * 30 + "t" + "]" * 30 + "\n", "nested deeper"),
        ("system: x\ntitle: X\nfields: {start: [" + ", ".join(["t"] * 201) + "]}\n", "200 are allowed"),
        ("#" * 300_000, "larger than 256 KB"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=problem) as caught:
        load_log_map(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        load_log_map(tmp_path / "mine.yaml")
