"""What a sense's `read()` yields: facts of the world at an instant, in wire form.

Records are what a capture keeps and a replay feeds, so they hold what came in and nothing derived from it.
"""

from __future__ import annotations

import msgspec

OK = "ok"


class ScrapeRecord(msgspec.Struct, frozen=True, kw_only=True, tag="scrape"):
    """One attempt to read a target's metrics page."""

    t: float  # when the request was sent, seconds since the epoch
    target: str  # the target's key
    reason: str = OK  # what the attempt came to: a key of agent.senses.scrape.MESSAGES
    message: str = ""  # the same for a person, with what to do; empty when ok
    status: int = 0  # HTTP status; 0 where there was no answer
    content_type: str = ""
    body: bytes = b""  # decompressed; empty unless ok
    duration: float = 0.0  # seconds

    @property
    def ok(self) -> bool:
        """Whether a body came in. Whether it is a metrics page shows when it is parsed."""
        return self.reason == OK


class FactsRecord(msgspec.Struct, frozen=True, kw_only=True, tag="facts"):
    """What one source knows of a target's configuration. A later record replaces the source's earlier one."""

    t: float
    target: str
    source: str  # in words: "version endpoint", "models endpoint", "metrics page", "command line", "configuration"
    facts: dict[str, float] = {}  # names as in kvitals_engine_fact
    info: dict[str, str] = {}  # names as in kvitals_engine_info's labels


class ProbeRecord(msgspec.Struct, frozen=True, kw_only=True, tag="probe"):
    """What came of a one-token request."""

    t: float
    target: str
    answered: bool
    seconds: float


ScrapeSenseRecord = ScrapeRecord | FactsRecord
Record = ScrapeSenseRecord | ProbeRecord
