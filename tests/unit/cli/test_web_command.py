"""`kvitals web` refuses what it could not show, rather than start a page that says so."""

from __future__ import annotations

import pytest

from kvitals.ui.cli.main import main

BROKEN = "http://[::1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["web", BROKEN], "is not a URL"),
        (["web", "ftp://host"], "is not the URL of a server"),
        (["web", "http://"], "is not the URL of a server"),
        (["web", "--prometheus", BROKEN], "--prometheus: 'http://[::1' is not a URL"),
        (["web", "no-such-file"], "no such file"),
        (["web", "--rules", "/no/such"], "--rules /no/such: no such directory"),
        (["web", "http://127.0.0.1:9", "--config", "/no/such"], "cannot be read"),
        (["web", "--history", "/no/such"], "no history at /no/such"),
        (["whatif", "--agent", BROKEN], "--agent: 'http://[::1' is not a URL"),
        (["curve", "--agent", BROKEN], "--agent: 'http://[::1' is not a URL"),
        (["trace", "--newest", "1", BROKEN], "is not a URL"),
        (["tap", "--upstream", BROKEN], "--upstream: 'http://[::1' is not a URL"),
        (["cache", BROKEN], "is not the URL of an agent"),
        (["knee", BROKEN], "is not a URL"),
        (["review", BROKEN, "--out", "/no/such"], "is not a URL"),
    ],
)
def test_what_can_not_be_asked_is_said_at_once(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
