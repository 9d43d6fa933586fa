"""What systemd is told of this process (sd_notify), where systemd started it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

READY, WATCHDOG, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"


def notify(state: str, env: Mapping[str, str] = os.environ) -> bool:
    """Send a state to the socket that $NOTIFY_SOCKET names; whether it was sent. Raises nothing."""
    address = env.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return False
    if address.startswith("@"):  # in Linux' abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), address)
    except OSError:
        return False
    return True


def watchdog_seconds(env: Mapping[str, str] = os.environ) -> float | None:
    """How often systemd expects a sign of life; None where it expects none of this process."""
    pid = env.get("WATCHDOG_PID", "")
    if pid and pid != str(os.getpid()):
        return None
    try:
        seconds = int(env.get("WATCHDOG_USEC", "")) / 1e6
    except ValueError:
        return None
    return seconds if seconds > 0 else None
