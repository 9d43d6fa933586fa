"""What a lever's setting says to paste is a command, and what is no command is words."""

from __future__ import annotations

import shlex

import pytest

from kvitals.rules.finding import LeverSetting
from kvitals.rules.loader import load
from tests.support.loops import for_each

SETTINGS = [one for lever in load().levers.values() for one in lever.settings if one.value]


def setting(flag: str, to: str, now: str = "") -> LeverSetting:
    return LeverSetting(flag=flag, now=now, to=to, restart=True, note="")


@pytest.mark.parametrize(
    ("one", "command", "text"),
    [
        (
            setting("--enable-prefix-caching", "on", "off"),
            "--enable-prefix-caching",
            "--enable-prefix-caching (now off)",
        ),
        (setting("--max-num-seqs", "16", "2"), "--max-num-seqs 16", "--max-num-seqs 16 (now 2)"),
        (setting("--enforce-eager", "remove it"), "", "remove --enforce-eager"),
        (
            setting("--kv-offloading-size", "two to four times the device's KV memory, in GiB"),
            "",
            "--kv-offloading-size: two to four times the device's KV memory, in GiB",
        ),
        (setting("--a fp8 with --b", "258", "129"), "--a fp8 --b 258", "--a fp8 --b 258 (now 129)"),
        (setting("--generation", "'{\"max_new_tokens\": N}'"), "", "--generation: '{\"max_new_tokens\": N}'"),
        (setting("--events", "'{\"on\": true}'"), "--events '{\"on\": true}'", "--events '{\"on\": true}'"),
        (setting("--policy", ""), "", "--policy"),
    ],
)
def test_command_and_text(one: LeverSetting, command: str, text: str) -> None:
    assert (one.command, one.text) == (command, text)


@for_each("one", SETTINGS, ids=lambda one: f"{one.system} {one.flag} {one.value}"[:60])
def test_a_shipped_command_is_flags_with_a_value_each(one: object) -> None:
    words = shlex.split(setting(one.flag, one.value).command)  # type: ignore[attr-defined]
    for number, word in enumerate(words):
        assert word.startswith("--") or words[number - 1].startswith("--"), words
