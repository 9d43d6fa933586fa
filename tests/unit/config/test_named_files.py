"""Secrets and certificates that a configuration names, and addresses that two tables have."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvitals.config import load
from kvitals.config.named_files import same_addresses, unusable_files
from tests.support.config_texts import made, write

KEYS = {
    "[agent].parts_token_file": '[agent]\nparts_token_file = "F"\n',
    "[remote].token_file": '[remote]\nlisten = ":9"\ncert_file = "good"\nkey_file = "good"\ntoken_file = "F"\n',
    "[remote].key_file": '[remote]\nlisten = ":9"\ncert_file = "good"\nkey_file = "F"\ntoken_file = "good"\n',
    "[otlp].token_file": '[otlp]\ntoken_file = "F"\n',
    "[otlp_out].headers_file": '[otlp_out]\nendpoint = "http://c:4318"\nheaders_file = "F"\n',
    "[kubernetes].ca_file": '[kubernetes]\nnode = "n"\nca_file = "F"\n',
    "[tap].token_file": '[tap]\ntoken_file = "F"\n',
    "[prometheus].basic_file": '[prometheus]\nurl = "http://p"\nbasic_file = "F"\n',
    "[notify].slack 1.url_file": '[notify]\n[[notify.slack]]\nurl_file = "F"\n',
    "[notify].pagerduty 2.key_file": '[notify]\n[[notify.pagerduty]]\nkey_file = "good"\n'
    '[[notify.pagerduty]]\nkey_file = "F"\n',
    "[[target]] 2.bearer_file": '[[target]]\nurl = "http://a"\n[[target]]\nurl = "http://b"\nbearer_file = "F"\n',
}
FORMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda file: None, "F cannot be read: No such file or directory"),
    "fifo": (os.mkfifo, "F cannot be read: not a regular file"),
    "directory": (Path.mkdir, "F cannot be read: Is a directory"),
    "empty": (Path.touch, "F is empty"),
    "binary": (lambda file: file.write_bytes(b"\xff\xfe\x00"), "F cannot be read: not plain text"),
    "too large": (lambda file: file.write_bytes(b"x" * (5 << 20)), "F cannot be read: larger than"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_secret_that_cannot_be_used_is_named_with_its_place(form: str, tmp_path: Path) -> None:
    make, says = FORMS[form]
    make(tmp_path / "F")
    (tmp_path / "good").write_text("token")
    for where, text in KEYS.items():
        config = load(write(tmp_path / "kvitals.toml", text), {})
        (problem,) = unusable_files(config)
        assert problem.startswith(f"{where}: {tmp_path}/{says}")


def test_a_secret_that_must_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    config = load(write(tmp_path / "kvitals.toml", '[tap]\ntoken_file = "F"\n'), {})
    (tmp_path / "F").write_text("x")
    monkeypatch.setattr(os, "open", refuse)
    assert [*unusable_files(config)] == [f"[tap].token_file: {tmp_path}/F cannot be read: Permission denied"]


def test_a_secret_of_two_lines_is_named_and_not_shown(tmp_path: Path) -> None:
    config = load(write(tmp_path / "kvitals.toml", '[tap]\ntoken_file = "F"\n'), {})
    (tmp_path / "F").write_text("abc\ndef\n")
    assert [*unusable_files(config)] == [f"[tap].token_file: {tmp_path}/F must contain one secret on one line"]


def test_files_of_a_cluster_are_no_problem_outside_of_it() -> None:
    assert [*unusable_files(made('[kubernetes]\nnode = "n"\n'))] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '[[target]]\nurl = "http://a"\n[[target]]\nurl = "b"\n[[target]]\nurl = "http://a/metrics"\n',
            ["[[target]] 1 and 3 have the same address http://a/metrics: remove all but one"],
        ),
        (
            '[agent]\nlisten = ":4317"\n[otlp]\n',
            [
                "[agent].listen and [otlp].grpc listen at the same address, port 4317: give each its own port",
            ],
        ),
        ('[otlp]\ngrpc = "127.0.0.1:1"\nhttp = "127.0.0.2:1"\n', []),
        ('[otlp]\ngrpc = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\n', []),
    ],
)
def test_addresses_that_two_tables_have_are_named_with_both(text: str, says: list[str]) -> None:
    assert [*same_addresses(made(text))] == says
