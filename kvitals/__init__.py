"""The vital signs of LLM serving: what is wrong, the proof, and the lever that fixes it.

    import kvitals

    document = kvitals.triage("incident.kvcap")     # or an agent's or an engine's URL
    kvitals.Client("http://127.0.0.1:9477").findings()
    kvitals.frame(kvitals.review("history/"), "levers")   # pip install 'kvitals[notebook]'

`triage`, `review`, `Client` and `frame` are the public API (docs/python.md). They load on first use, so that
`import kvitals` costs nothing. The packages of the tree are imported below this name: `kvitals.series`, `kvitals.rules`
and so on; those are not stable.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it; the import of `typing` would be most of the time of this one
if TYPE_CHECKING:
    from typing import Any

    from kvitals.ui.python_api import Client, Review, Triage, frame, review, triage

__all__ = ["Client", "Review", "Triage", "frame", "review", "triage"]


def __getattr__(name: str) -> Any:
    """A public name, loaded when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'kvitals' has no attribute {name!r}: the public API is {', '.join(__all__)}")
    from kvitals.ui import python_api

    value = globals()[name] = getattr(python_api, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
