"""What tests have done in a process of its own."""

from __future__ import annotations

import os
import time
from pathlib import Path

from kvitals.app.bounded_process import WorkRefusedError


def place(number: int) -> tuple[int, int]:
    return number + 1, os.getpid()


def refuse() -> None:
    raise WorkRefusedError("there is nothing")


def fail() -> None:
    raise RuntimeError("a fault of ours")


def fill_memory() -> int:
    return len([bytes(1 << 20) for _ in range(4096)])


def large_result() -> bytes:
    return bytes(65 << 20)


def sleep(file: Path) -> None:
    file.write_text(str(os.getpid()), encoding="ascii")
    time.sleep(60)
