"""How the terminal and the page write amounts and times."""

from __future__ import annotations

import time

from kvitals.rules.finding import Finding

_EIGHTHS = " ▏▎▍▌▋▊▉█"
PHASE_STYLES = {
    "gateway": "blue",
    "queue": "yellow",
    "kv_wait": "magenta",
    "prefill": "cyan",
    "transfer": "magenta",
    "decode": "green",
    "unattributed": "dim",
}
TIME_WORDS = {"ttft": "TTFT", "e2e": "end-to-end time"}
GROUP_WORDS = {
    "tenant": "tenant",
    "prompt_tokens": "prompt length",
    "engine": "engine",
    "cached": "prompt cached",
}


def seconds(value: float | None) -> str:
    """A duration for people."""
    if value is None:
        return "unknown"
    if value >= 100:
        return f"{value:.0f} s"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms"


def plain(text: str) -> str:
    """Without what a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in text)


def bar(share: float, width: int) -> str:
    """A share of so many columns, to an eighth of one."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def moment(t: float) -> str:
    """Seconds since the epoch for people, UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(t))


def since_text(finding: Finding, began: str) -> str:
    """Since when a finding holds, with the moment `began` as the reader's clock has it."""
    return f"{began} or earlier" if finding.since_at_least else began


def short(count: float) -> str:
    """A count to three or four digits: `21.0 M`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f}"
