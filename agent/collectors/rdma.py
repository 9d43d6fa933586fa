"""The RDMA ports of a node (InfiniBand, RoCE, EFA): their rate, what they moved, and what went wrong on them.

    ports = read_ports(Path("/sys/class/infiniband"), read)    # I/O; read(path) gives the start of a file, or nothing

Traffic of RDMA passes the kernel's network statistics by, so that it is only here. The files are described in the
kernel's Documentation/ABI/stable/sysfs-class-infiniband (counters), NVIDIA's "Understanding mlx5 Linux Counters and
Status Parameters" (hw_counters of mlx5) and AWS's documentation of EFA (hw_counters of efa).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from kvitals.agent.collectors.procfs import number
from kvitals.agent.records import RdmaPort

FOLDER = Path("/sys/class/infiniband")

MAX_DEVICES, MAX_PORTS = 32, 2
"""Ports beyond them are left out. A node with a card per GPU has eight devices of one port."""

WORD_BYTES = 4
"""port_xmit_data and port_rcv_data count words of four bytes."""

FAULTS: Mapping[str, tuple[str, ...]] = {
    "link": (
        "counters/link_downed", "counters/link_error_recovery", "counters/local_link_integrity_errors",
        "counters/symbol_error",
    ),
    "dropped": ("counters/port_xmit_discards", "hw_counters/out_of_buffer", "hw_counters/rx_drops"),
    "resent": (
        "hw_counters/local_ack_timeout_err", "hw_counters/packet_seq_err", "hw_counters/retrans_timeout_events",
        "hw_counters/rnr_nak_retry_err",
    ),
    "congestion": ("hw_counters/np_cnp_sent", "hw_counters/rp_cnp_handled"),
}  # fmt: skip
"""Files of counters by kind of fault. Drivers have some of them; a kind is the sum of those that there are."""

_SENT = (("counters/port_xmit_data", WORD_BYTES), ("hw_counters/tx_bytes", 1))
_RECEIVED = (("counters/port_rcv_data", WORD_BYTES), ("hw_counters/rx_bytes", 1))
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
_RATE = re.compile(rb"(\d{1,5}(?:\.\d{1,3})?) Gb/sec")
_BYTES_PER_GIGABIT = 1e9 / 8

Read = Callable[[str], bytes]
"""The start of a file; empty where it cannot be read."""


def read_ports(folder: Path, read: Read) -> dict[str, RdmaPort]:
    """The ports by `device/port`, such as mlx5_0/1. Empty where the node has none, or where they are hidden."""
    ports = {}
    for device in islice(_names(folder), MAX_DEVICES):
        for port in islice(_names(folder / device / "ports"), MAX_PORTS):
            ports[f"{device}/{port}"] = _port(f"{folder}/{device}/ports/{port}", read)
    return ports


def _names(folder: Path) -> Iterator[str]:
    names: list[str] = []
    with suppress(OSError):
        names = sorted(os.listdir(folder))  # noqa: PTH208 (names alone)
    return (name for name in names if _NAME.fullmatch(name))


def _port(base: str, read: Read) -> RdmaPort:
    def count(file: str) -> int | None:
        return number(read(f"{base}/{file}").strip())

    def first(files: tuple[tuple[str, int], ...]) -> float | None:
        counts = ((count(file), unit) for file, unit in files)
        return next((float(found * unit) for found, unit in counts if found is not None), None)

    rate = _RATE.match(read(f"{base}/rate"))
    faults = {kind: [found for file in files if (found := count(file)) is not None] for kind, files in FAULTS.items()}
    return RdmaPort(
        active=read(f"{base}/state").strip().endswith(b"ACTIVE"),
        rate=float(rate[1]) * _BYTES_PER_GIGABIT if rate else None,
        sent=first(_SENT),
        received=first(_RECEIVED),
        faults={kind: float(sum(counts)) for kind, counts in faults.items() if counts},
    )
