"""Whose what an engine stores is, as far as its events and earlier requests tell."""

from __future__ import annotations

from collections import OrderedDict

from kvitals.agent.ledger.event import BlocksStored
from kvitals.agent.ledger.parties import Party

MAX_SESSIONS = 20_000
"""Sessions that are remembered, those seen last."""


class Owners:
    """Sessions and their tenants, of a node's engines."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, str] = OrderedDict()

    def told(self, event: BlocksStored) -> Party:
        """What an event tells: its tenant, or that of its session."""
        session = event.session
        if event.tenant:
            if session:
                self.learn(session, event.tenant)
            return Party(event.tenant, session, event.lora)
        return Party(self._tenants.get(session, "") if session else "", session, event.lora)

    def learn(self, session: str, tenant: str) -> None:
        """A session is a tenant's."""
        self._tenants[session] = tenant
        self._tenants.move_to_end(session)
        if len(self._tenants) > MAX_SESSIONS:
            self._tenants.popitem(last=False)
