"""Conversations that go on: whether the next turn found what the turn before had left in the cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from kvitals.agent.ledger.engine import SettledLookup
from kvitals.agent.series_keys import LabelSet

MAX_SESSIONS = 8_192
"""Conversations that are remembered, those heard of last."""


class Turns:
    """Of one engine, in the order in which look-ups are settled."""

    def __init__(self) -> None:
        self.kept = self.lost = self.lost_tokens = 0  # turns that found all that was there, and others
        self.found = self.nothing = 0  # prompts of a block or more, by whether they found any
        self._sessions: OrderedDict[str, tuple[int, int]] = OrderedDict()  # blocks of its last prompt, the last of them

    def look(self, look: SettledLookup) -> None:
        """A look-up."""
        if look.blocks:
            self.found += look.hits > 0
            self.nothing += look.hits == 0
        session, chain = look.party.session, look.chain
        if not session or not chain:
            return
        before = self._sessions.get(session)
        if before is not None and before[0] <= len(chain) and chain[before[0] - 1] == before[1]:
            missing = max(before[0] - look.hits, 0)
            self.kept += missing == 0
            self.lost += missing > 0
            self.lost_tokens += missing * look.tokens
        self._sessions[session] = len(chain), chain[-1]
        self._sessions.move_to_end(session)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)

    def forget(self) -> None:
        """The cache was emptied: who finds nothing now has not lost it to others."""
        self._sessions.clear()

    def counts(self) -> Iterator[tuple[str, LabelSet, float]]:
        """Series of what was counted."""
        yield "kvitals_cache_turns_total", (("kept", "all"),), float(self.kept)
        yield "kvitals_cache_turns_total", (("kept", "part"),), float(self.lost)
        yield "kvitals_cache_turn_lost_tokens_total", (), float(self.lost_tokens)
        yield "kvitals_cache_prompts_total", (("found", "some"),), float(self.found)
        yield "kvitals_cache_prompts_total", (("found", "none"),), float(self.nothing)
