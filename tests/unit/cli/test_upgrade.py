"""`kvitals upgrade`: what changes between two versions, for everybody and for one command line."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
from pathlib import Path

import pytest

from kvitals.app.upgrade import UnknownVersionError, Upgrade, UpgradeError, compare_versions
from kvitals.rules.loader import load
from kvitals.ui.cli.main import main

KNOWLEDGE = load()


def compared(system: str, before: str, after: str, command: str = "") -> Upgrade:
    return compare_versions(KNOWLEDGE, system, before, after, shlex.split(command))


def events(upgrade: Upgrade) -> dict[str, str]:
    return {change.flag: change.event for change in upgrade.flags}


def test_a_flag_that_is_gone_breaks_only_where_it_is_given() -> None:
    with_it = compared("sglang", "0.5.13", "0.5.23", "sglang serve --model-path m --cuda-graph-max-bs 16")
    assert with_it.breaks
    (gone,) = [change for change in with_it.flags if change.event == "removed"]
    assert (gone.flag, gone.given, gone.instead) == ("--cuda-graph-max-bs", "16", "--cuda-graph-max-bs-decode")
    without = compared("sglang", "0.5.13", "0.5.23", "sglang serve --model-path m --tp 2")
    assert not without.breaks
    assert "--cuda-graph-max-bs" not in events(without)


def test_a_default_matters_where_the_flag_is_not_given() -> None:
    flag = "--schedule-policy"
    assert events(compared("sglang", "0.4.3", "0.4.4", "sglang serve --model-path m"))[flag] == "default"
    assert flag not in events(compared("sglang", "0.4.3", "0.4.4", "sglang serve --model-path m --schedule-policy lpm"))


def test_a_key_of_an_object_is_compared_as_a_flag_is() -> None:
    command = 'vllm serve m --kv-transfer-config \'{"kv_ip": "127.0.0.1"}\''
    change = next(c for c in compared("vllm", "0.28.0", "0.32.0", command).flags if c.event == "removed")
    assert (change.flag, change.given) == ("--kv-transfer-config.kv_ip", "127.0.0.1")


def test_a_value_that_is_no_choice_any_more_breaks() -> None:
    upgrade = compared("vllm", "0.28.0", "0.32.0", "vllm serve m --tokenizer-mode slow")
    assert upgrade.breaks
    assert events(upgrade)["--tokenizer-mode"] == "choice"
    assert not compared("vllm", "0.28.0", "0.32.0", "vllm serve m --tokenizer-mode auto").breaks


@pytest.mark.parametrize(
    ("flags", "doubts"),
    [
        ("--bogus 3", ["--bogus is not a flag of vllm 0.28.0 or 0.32.0: check its spelling"]),
        ("--max-num-seqs abc", ["--max-num-seqs takes a whole number from 1 to 1,048,576, not abc"]),
        ("--gpu-memory-utilization 90", ["--gpu-memory-utilization takes a value above 0, at most 1, not 90"]),
        ("-tp 2 --no-enable-prefix-caching --port 8000 --max_num_seqs 64 -O3 --served-model-name a", []),
    ],
)
def test_what_the_engine_may_refuse_is_not_said_to_start(flags: str, doubts: list[str]) -> None:
    assert compared("vllm", "0.28.0", "0.32.0", f"vllm serve m {flags}").doubts == doubts


def test_another_spelling_of_a_flag_is_no_change() -> None:
    upgrade = compared("sglang", "0.4.0", "0.5.23", "sglang serve --model-path m --tp-size 2")
    assert not [change.flag for change in upgrade.flags if "tp" in change.flag and change.given]


def test_a_metric_that_was_renamed_names_its_successor() -> None:
    upgrade = compared("vllm", "0.11.2", "0.32.0")
    renamed = {change.name: change.instead for change in upgrade.names if change.event == "removed"}
    assert renamed["vllm:gpu_cache_usage_perc"] == "vllm:kv_cache_usage_perc"
    assert {change.family for change in upgrade.families if change.event == "lost"} == set()


def test_a_family_that_is_gained_names_the_rules_that_read_it() -> None:
    gained = {change.family: change for change in compared("vllm", "0.28.0", "0.32.0").families}
    assert "ENG05" in gained["kvitals_requests_rejected_total"].rules


def test_levers_with_another_flag_are_named() -> None:
    levers = {change.lever: change.after for change in compared("vllm", "0.28.0", "0.32.0").levers}
    assert levers["admission-control"] == "--max-num-queued-reqs"


def test_the_same_version_changes_nothing() -> None:
    upgrade = compared("vllm", "0.32.0", "0.32.0")
    assert not upgrade.affects
    assert (upgrade.flags, upgrade.names, upgrade.families, upgrade.levers) == ([], [], [], [])


def test_a_query_that_goes_dead_is_named_with_its_successor(tmp_path: Path) -> None:
    rule = "- {alert: Full, expr: 'max(vllm:gpu_cache_usage_perc) > 0.9'}"
    (tmp_path / "a.yaml").write_text(f"groups:\n- name: g\n  rules:\n  {rule}\n")
    code, answer = asked(["upgrade", "vllm", "0.9.2", "0.32.0", str(tmp_path / "a.yaml"), "-o", "json"])
    assert code == 1
    (broken,) = answer["queries"]
    assert "vllm:kv_cache_usage_perc" in broken["fix"]
    code, answer = asked(["upgrade", "vllm", "0.31.0", "0.32.0", str(tmp_path / "a.yaml"), "-o", "json"])
    assert answer["queries"] == []  # it was dead before


@pytest.mark.parametrize(
    "system, before, after, error, text",
    [
        ("vllm", "0.28.0", "0.99.0", UnknownVersionError, "0.99.0 is newer than the flags that this kvitals knows"),
        ("vllm", "0.4.0", "0.32.0", UnknownVersionError, "known from version 0.5.0 on"),
        ("llamacpp", "1", "2", UpgradeError, "kvitals knows those of sglang, vllm"),
        ("vllm", "old", "0.32.0", UpgradeError, "`old` is not a version"),
    ],
)
def test_what_cannot_be_compared(system: str, before: str, after: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        compared(system, before, after)


def test_a_version_may_be_written_as_the_tag_of_its_release() -> None:
    assert compared("vllm", "v0.28.0", "v0.32.0") == compared("vllm", "0.28.0", "0.32.0")


def test_a_command_line_of_another_engine_is_refused() -> None:
    with pytest.raises(UpgradeError, match="does not start vllm"):
        compared("vllm", "0.28.0", "0.32.0", "sglang serve --model-path m")


def asked(words: list[str]) -> tuple[object, dict[str, list[dict[str, str]]]]:
    """The exit code and the JSON of a command."""
    text = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(text), pytest.raises(SystemExit) as ended:
        main(words)
    text.flush()
    return ended.value.code, json.loads(text.buffer.getvalue())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "words, code",
    [
        ("vllm 0.28 0.32", 1),
        ("vllm 0.32.0 0.32.0", 0),
        ("vllm 0.28 0.99", 3),
        ("llamacpp 1 2", 2),
        ('vllm 0.28 0.32 --command-line "vllm serve \'m"', 2),
    ],
)
def test_exit_codes(words: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["upgrade", *shlex.split(words)])
    assert ended.value.code == code


@pytest.mark.parametrize("words", ["vllm 0.5.0 0.33.0", "sglang 0.4.0 0.5.23", "vllm 0.11.2 0.33.0"])
def test_the_answer_fits_a_screen(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["upgrade", *words.split()])
    assert len(capsys.readouterr().out.splitlines()) <= 40
