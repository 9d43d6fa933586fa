"""Whose blocks and look-ups are: a tenant and a session, as far as they are known."""

from __future__ import annotations

from typing import Literal

How = Literal["told", "learned", ""]
"""How a tenant is known: the engine's event says it, or a request's record that fits. Empty: not known."""


class Party:
    """Whose something is. It is made with what is known at once, and settled when no more is to be learned."""

    __slots__ = ("how", "lora", "session", "settled", "tenant")

    def __init__(self, tenant: str = "", session: str = "", lora: str = "") -> None:
        self.tenant = tenant  # empty: not known
        self.session = session
        self.lora = lora
        self.how: How = "told" if tenant else ""
        self.settled = bool(tenant)

    def settle(self, tenant: str = "", session: str = "") -> None:
        """This is all that will be known. What the engine said goes before what was learned; a LoRA that nobody else
        is known to own stands for its owner."""
        if not self.tenant:
            self.tenant = tenant or (f"lora:{self.lora}" if self.lora else "")
            self.how = "learned" if tenant else "told" if self.tenant else ""
        self.session = self.session or session
        self.settled = True
