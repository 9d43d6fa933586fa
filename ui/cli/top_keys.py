"""The keys of `kvitals top`: Textual ends an app at typed bytes that are not UTF-8, as of a Latin-1 terminal."""

from __future__ import annotations

from codecs import IncrementalDecoder, getincrementaldecoder
from functools import partial

from textual.drivers import linux_driver


def accept_any_bytes() -> None:
    """From now on, such bytes are letters that no key has. Its decoder takes no parameter, so it is replaced."""
    vars(linux_driver)["getincrementaldecoder"] = _replacing


def _replacing(encoding: str) -> partial[IncrementalDecoder]:
    return partial(getincrementaldecoder(encoding), errors="replace")
