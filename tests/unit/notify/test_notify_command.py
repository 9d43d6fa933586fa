"""`kvitals notify` and [notify]: what is refused, with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvitals.config import ConfigError
from kvitals.config import load as load_config
from kvitals.ui.cli.main import main

HOOK = '[[notify.webhook]]\nurl = "http://127.0.0.1:1/"\n'


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["notify", *arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


def written(folder: Path, text: str) -> str:
    path = folder / "kvitals.toml"
    path.write_text(text)
    return str(path)


def test_it_asks_for_a_prometheus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--prometheus" in refused(capsys, "--config", written(tmp_path, HOOK))


def test_the_configured_prometheus_needs_no_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spool").write_bytes(b"no directory")
    text = f'[prometheus]\nurl = "http://127.0.0.1:1"\n[notify]\ndirectory = "spool"\n{HOOK}'
    said = refused(capsys, "--config", written(tmp_path, text), "--listen", "127.0.0.1:0")
    assert "`directory` in [notify]" in said, "it got as far as its queue"


def test_it_asks_whom_to_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "--prometheus", "http://127.0.0.1:1", "--config", written(tmp_path, ""))
    assert "[notify]" in said


def test_other_machines_need_a_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--prometheus", "http://127.0.0.1:1", "--config", written(tmp_path, HOOK), "--listen", "0.0.0.0:9479")
    assert "token_file" in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[notify]\n", "set 1 to"),
        ('[[notify.webhook]]\nurl = "http://user:pw@h/"\n', "password"),
        ('[[notify.webhook]]\nurl = "http://h/"\nbearer = "x"\n', "bearer"),
        ('[[notify.slack]]\nurl = "https://hooks"\n', "[[notify.slack]] 1 unknown key 'url'; did you mean 'url_file'?"),
        ('[[notify.pagerduty]]\nkey = "x"\n', "[[notify.pagerduty]] 1 unknown key 'key'; did you mean 'key_file'?"),
        ('[notify.slack]\nurl_file = "x"\n', "[[notify.slack]] is a list: write it with two brackets"),
        ('[notify]\nslack = "https://hooks"\n', "[[notify.slack]] is a list: write it with two brackets"),
        (f'{HOOK}name = "a"\n[[notify.slack]]\nname = "a"\nurl_file = "x"\n', "the same name"),
        (f'[notify]\nrepeat = "1s"\n{HOOK}', "repeat"),
        (f'[notify]\nlisten = "nowhere"\n{HOOK}', "listen"),
        ('[[notify.webhook]]\nurl = "http://h/"\nseverities = ["critical"]\n', "severities"),
    ],
)
def test_what_the_configuration_refuses(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(Path(written(tmp_path, text)))
    assert said in str(raised.value)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = load_config(Path(written(tmp_path, '[notify]\ntoken_file = "t"\n[[notify.slack]]\nurl_file = "s"\n')))
    assert config.notify is not None
    assert (config.notify.token_file, config.notify.slack[0].url_file) == (tmp_path / "t", tmp_path / "s")


def test_a_place_that_can_not_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spool").write_bytes(b"no directory")
    config = written(tmp_path, f'[notify]\ndirectory = "spool"\n{HOOK}')
    arguments = ("--prometheus", "http://127.0.0.1:1", "--config", config, "--listen", "127.0.0.1:0")
    assert "`directory` in [notify]" in refused(capsys, *arguments)
