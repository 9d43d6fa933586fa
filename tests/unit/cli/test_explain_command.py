"""`kvitals explain` as a user would type it: each kind of word has a page, an unknown one names its neighbours."""

from __future__ import annotations

import pytest

from kvitals.dashboards import runbooks
from kvitals.dashboards.reference import glossary
from kvitals.dashboards.reference.explain import UnknownWordError, explanation, vocabulary
from kvitals.rules.loader import load
from kvitals.ui.cli.main import ALIASES, COMMANDS, main
from tests.support.loops import for_each

KNOWLEDGE = load()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert isinstance(stop.value.code, int)
    printed = capsys.readouterr()
    return stop.value.code, printed.out, printed.err


def test_every_word_of_the_product_has_a_page() -> None:
    empty = [word for word in vocabulary(KNOWLEDGE) if not explanation(word, KNOWLEDGE).startswith("# ")]
    assert empty == []


@pytest.mark.parametrize(
    ("word", "title", "part"),
    [
        ("kvc01", "# KVC01 kv-near-ceiling", "## The levers, in order"),
        ("KVC1", "# KVC01 kv-near-ceiling", "## The condition"),
        ("kv-near-ceiling", "# KVC01 kv-near-ceiling", "First 60 seconds"),
        ("ttft_p99_seconds", "# kvitals:ttft_p99_seconds", "- Absent below 20 requests"),
        ("kvitals:ttft_p99_seconds", "# kvitals:ttft_p99_seconds", "LAT01"),
        ("kvitals_ttft_seconds_bucket", "# kvitals_ttft_seconds", "vLLM: `vllm:time_to_first_token_seconds`"),
        ("vllm:num_requests_waiting", "# vllm:num_requests_waiting", "`kvitals_requests_waiting`"),
        ("raise-kv-budget", "# raise-kv-budget", "- Does not fix: "),
        ("ttft", "# TTFT", "Time to first token"),
        ("waiting", "# running, waiting", "Requests in the batch"),
        ("refaults", "# refault", "computed again"),
    ],
)
def test_a_word_of_each_kind(word: str, title: str, part: str) -> None:
    page = explanation(word, KNOWLEDGE)
    assert page.splitlines()[0] == title
    assert part in page


def test_a_rule_has_the_text_of_its_runbook() -> None:
    assert explanation("SCH01", KNOWLEDGE) == runbooks.page(KNOWLEDGE.rules["SCH01"], KNOWLEDGE)


def test_the_glossary_is_the_text_of_its_document() -> None:
    document = "".join(f"<!-- words of {subject} -->\nold\n<!-- end of words -->\n" for subject in glossary.subjects())
    filled = glossary.fill_glossary(document)
    assert "\nold\n" not in filled
    assert all(f"| {words} | {term.is_} |" in filled for words, term in glossary.terms().values())
    with pytest.raises(ValueError, match="verbs"):
        glossary.fill_glossary(document.replace("words of verbs", "words"))


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (("--max-num-seqs",), "# lower-max-num-seqs"),
        (("-o", "md", "--max-num-seqs"), "# lower-max-num-seqs"),
        (("KV cache full",), "# KVC01"),
        (("KV", "cache", "full:", "requests", "wait", "for", "blocks"), "# KVC01"),
        (("Route each adapter to few replicas",), "# adapter-affinity"),
    ],
)
def test_titles_and_flags_have_pages(words: tuple[str, ...], begins: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "explain", *words, *(() if "md" in words else ("-o", "md")))
    assert (code, err) == (0, "")
    assert out.startswith(begins)


@pytest.mark.parametrize(
    ("word", "near"),
    [("--max-num-sequ", "--max-num-seqs"), ("KV cache is full", "KV cache full: requests wait for blocks")],
)
def test_what_is_nearly_a_flag_or_a_title_names_it(word: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "explain", word)
    assert (code, out) == (2, "")
    assert near in err


@pytest.mark.parametrize(
    ("word", "near"), [("preempton", "preemption"), ("KVC99", "KVC09"), ("ttft_p99", "ttft_p99_seconds"), ("§", "")]
)
def test_an_unknown_word_names_its_neighbours(word: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnknownWordError) as raised:
        explanation(word, KNOWLEDGE)
    assert near in [*raised.value.near, ""]
    code, out, err = run(capsys, "explain", word)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert ("Did you mean" in err) == bool(near)


@for_each("columns", ["60", "80", "120"])
def test_the_page_fits_the_terminal(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for word in ("KVC01", "ttft_p99_seconds", "raise-kv-budget", "knee"):
        code, out, _ = run(capsys, "explain", word)
        assert code == 0
        assert max(map(len, out.splitlines())) <= int(columns)


def test_the_terminal_shows_no_link_to_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "explain", "KVC01")
    assert ".md" not in out
    assert "LAT01" in out


def test_markdown_is_the_page_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "explain", "knee", "-o", "md") == (0, explanation("knee", KNOWLEDGE), "")


def test_rules_show_is_an_alias(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "rules", "show", "KVC01") == run(capsys, "explain", "KVC01")


@for_each("old", ALIASES)
def test_an_old_command_is_the_new_one_with_a_note(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    now = ALIASES[old]
    assert old not in COMMANDS
    code, out, err = run(capsys, old, "--help")
    assert (code, out) == run(capsys, *now, "--help")[:2]
    assert f"`{old}` is now `{' '.join(now)}`" in err


def test_there_are_at_most_26_commands_with_those_to_come() -> None:
    to_come = {"top", "patch", "mcp", "prove", "gate", "upgrade"}
    assert len(COMMANDS.keys() | to_come) <= 26


@pytest.mark.parametrize("word", ["kv_usage", "kv usage", "kv-usage", "raise kv budget", "kv usage p90"])
def test_the_marks_between_the_parts_of_a_name_do_not_matter(word: str) -> None:
    assert explanation(word, KNOWLEDGE)
