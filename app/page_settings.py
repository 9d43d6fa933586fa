"""What the page's process is told when it is started: one JSON document in the environment."""

from __future__ import annotations

import os

import msgspec

from kvitals.series.undecodable import UNDECODABLE

VARIABLE = "KVITALS_WEB"
API_VARIABLE = "KVITALS_API"
DEFAULT_API = "http://127.0.0.1:9477"


class SettingsError(Exception):
    """The environment holds what is no settings; the message says what to do."""


class PageSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the page looks first, how it judges recordings, and whom it lets in."""

    api: str = ""  # the agent's address; empty: KVITALS_API, else the usual place
    recording: str = ""  # a file that is shown first
    prometheus: str = ""  # a server that is shown first
    history: str = ""  # directory or file of the agent's history, where this process may read it
    config: str = ""  # kvitals.toml; empty: the usual places
    rules: tuple[str, ...] = ()  # directories with the user's own rules
    slo: dict[str, float] = {}  # objective -> seconds, as the command line has it
    password_file: str = ""
    identity_header: str = ""  # set by a proxy that knows who it is
    hosts: (
        tuple[str, ...] | None
    ) = ()  # names that the page may be called by, beside localhost and addresses; None: any
    may_type: bool = True  # whether viewers may name servers that this process then asks
    upload_megabytes: int = 64
    ends_with_parent: bool = (
        False  # standard input is a pipe from the process that started the page: its end ends the page
    )

    @property
    def agent(self) -> str:
        """The address of the agent's API."""
        return (self.api or os.environ.get(API_VARIABLE, "")).strip().rstrip("/") or DEFAULT_API

    def encode(self) -> str:
        """As `read` wants it."""
        return msgspec.json.encode(self).decode()


def read() -> PageSettings:
    """This process's settings. Raises SettingsError."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return PageSettings()
    try:
        return msgspec.json.decode(text, type=PageSettings)
    except UNDECODABLE as error:
        raise SettingsError(f"{VARIABLE} cannot be read ({error}): start the page with `kvitals web`") from error
