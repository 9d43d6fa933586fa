"""Who is let in by a bearer token."""

from pathlib import Path

import pytest

from kvitals.agent.inbound import has_token

BYTES_OF_NO_TEXT = b"Bearer \xff\xfe".decode("utf-8", "surrogateescape")
"""As servers hand on a header that is no UTF-8."""


@pytest.mark.parametrize(
    ("sent", "let_in"),
    [
        ("Bearer s3cret", True),
        ("Bearer  s3cret ", True),
        ("Bearer s3cre", False),
        ("Bearer ", False),
        ("", False),
        ("Bearer é", False),
        (BYTES_OF_NO_TEXT, False),
    ],
)
def test_the_token_of_the_file_and_no_other(sent: str, let_in: bool, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    assert has_token(sent, file) is let_in


@pytest.mark.parametrize("held", ["", "\n", "one\ntwo\n"])
def test_a_file_without_a_token_lets_nobody_in(held: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(held)
    assert not has_token("Bearer ", file)
    assert not has_token(f"Bearer {held}", file)
    assert not has_token("Bearer s3cret", tmp_path / "none")
