"""What the pages about caches share."""

from __future__ import annotations

from kvitals.app.cache import CacheReport as Blocks
from kvitals.ui.web import header, source_registry


def no_blocks() -> None:
    """No engine told of its blocks: what would make them tell."""
    settings = source_registry.knowledge().levers["kv-events-replay"].settings
    header.show_empty(
        "No engine has reported its blocks",
        "So the content of the caches, their evictions and the blame between tenants are unknown. KV events "
        "report blocks; they need a flag and a restart of the engine. Under Sources, the incident “eviction "
        "cascade” has KV events.",
        *(f"{one.system}: {one.flag} {' '.join(one.value.split())}" for one in settings),
    )


def tenant_of(name: str, known: Blocks) -> str:
    """What a tenant is called here."""
    return known.names.get(name, name) or "(unknown)"
