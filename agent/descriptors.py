"""The process' limit of open files, raised as far as it may be."""

from __future__ import annotations

import resource

MOST = 65_536
"""As many as an agent with all of its connections needs, and no more: some libraries walk up to the limit."""


def raise_limit(most: int = MOST) -> int:
    """Raise the soft limit of open files to the hard one, up to `most`; returns the soft limit then. Raises nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft
        return wanted
    return soft
