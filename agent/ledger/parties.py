"""Whose blocks and look-ups are: a tenant and a session, as far as they are known."""

from __future__ import annotations

from typing import Literal

import msgspec

How = Literal["told", "learned", ""]
"""How a tenant is known: the engine's event says it, or a request's record that fits. Empty: not known."""


class Party(msgspec.Struct, eq=False, gc=False):
    """Whose something is. It is made with what is known at once, and settled when no more is to be learned."""

    tenant: str = ""  # empty: not known
    session: str = ""
    lora: str = ""
    how: How = ""
    settled: bool = False

    def __post_init__(self) -> None:
        self.how = "told" if self.tenant else ""
        self.settled = bool(self.tenant)

    def settle(self, tenant: str = "", session: str = "") -> None:
        """This is all that will be known. What the engine said goes before what was learned; a LoRA that nobody else
        is known to own stands for its owner."""
        if not self.tenant:
            self.tenant = tenant or (f"lora:{self.lora}" if self.lora else "")
            self.how = "learned" if tenant else "told" if self.tenant else ""
        self.session = self.session or session
        self.settled = True
