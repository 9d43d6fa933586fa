"""Words and scalars are read as a shell and a YAML parser read them, and an edit changes the word alone."""

from __future__ import annotations

import shlex

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvitals.app.patch.argument_sites import ListSite, ShellSite
from kvitals.app.patch.lever_change import PatchError
from kvitals.app.patch.source_text import apply_edits, raw_text, scalar_text, shell_commands
from kvitals.app.patch.yaml_nodes import scalar_items

VALUES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=12)
SHELL_TEXT = st.text("ab '\"\\$=-{}:,\n", max_size=24)


def words_of(text: str, *, script: bool = False) -> list[str]:
    source = raw_text(text, 0, len(text), lines=False)
    return [word.value for command in shell_commands(source, script=script) for word in command]


@given(SHELL_TEXT)
def test_a_shell_text_is_split_as_by_shlex(text: str) -> None:
    try:
        expected = shlex.split(text.replace("\\\n", " "))
    except ValueError:
        return
    if "\\\n" in text or "$(" in text:  # a continued line within a word, and a substitution, are the shell's alone
        return
    assert words_of(text) == expected


@given(st.lists(VALUES, min_size=2, max_size=5), st.integers(0, 4), VALUES)
def test_a_replaced_word_leaves_the_others(values: list[str], at: int, new: str) -> None:
    at %= len(values)
    text = " ".join(shlex.quote(value) for value in values)
    source = raw_text(text, 0, len(text), lines=False)
    (words,) = shell_commands(source, script=False)
    after = apply_edits(text, [ShellSite(text, source, words).replace(at, new)])
    assert shlex.split(after) == [*values[:at], new, *values[at + 1 :]]


@given(VALUES, st.sampled_from(["'", '"']))
def test_a_quoted_scalar_has_the_text_that_yaml_reads(value: str, quote: str) -> None:
    style = "'" if quote == "'" else '"'
    content = yaml.safe_dump({"a": value}, default_style=style, allow_unicode=True, width=1000)
    node = yaml.compose(content, Loader=yaml.SafeLoader)
    assert isinstance(node, yaml.MappingNode)
    scalar = node.value[0][1]
    source = scalar_text(content, scalar)
    assert source.text == scalar.value
    assert "".join(content[s:e] for s, e in zip(source.starts, source.ends, strict=True)) in content


@pytest.mark.parametrize("flow", [False, True])
@given(st.lists(VALUES, min_size=1, max_size=4), st.integers(0, 3), VALUES)
def test_items_of_a_list_are_replaced_inserted_and_removed(flow: bool, values: list[str], at: int, new: str) -> None:
    at %= len(values)
    content = yaml.safe_dump({"args": values}, default_flow_style=flow, allow_unicode=True, width=1000)
    node = yaml.compose(content, Loader=yaml.SafeLoader)
    assert isinstance(node, yaml.MappingNode)
    sequence = node.value[0][1]
    assert isinstance(sequence, yaml.SequenceNode)
    site = ListSite(content, sequence, scalar_items(sequence))
    assert list(site.values) == values

    def read(text: str) -> list[str]:
        return list(yaml.safe_load(text)["args"] or [])

    assert read(apply_edits(content, [site.replace(at, new)])) == [*values[:at], new, *values[at + 1 :]]
    assert read(apply_edits(content, [site.insert([["--x", new]])]))[-1].removeprefix("--x=") == new
    if len(values) > 1:
        assert read(apply_edits(content, site.remove(at, at))) == [*values[:at], *values[at + 1 :]]


@pytest.mark.parametrize("text", ["a 'b", 'a "b'])
def test_an_open_quote_is_refused(text: str) -> None:
    with pytest.raises(PatchError, match="is not closed"):
        words_of(text)
