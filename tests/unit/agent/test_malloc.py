"""Memory that is freed goes back, in a process that asks for it."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kvitals.agent.malloc import HEAPS

SCRIPT = """
import sys
import numpy as np
from kvitals.agent.malloc import give_back
if sys.argv[1] == "asks":
    assert give_back()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
np.ones(3 << 20)  # 24 MB, freed at once: from now on glibc takes less from its heap
between = []
large = []
before = resident()
for _ in range(20):
    large.append(np.ones(1 << 17))
    between.append(bytearray(1000))
large.clear()
print(resident() - before)
"""

HEAPS_SCRIPT = """
import ctypes, sys, threading
from kvitals.agent.malloc import give_back
if sys.argv[2] == "asks":
    assert give_back()
barrier, held = threading.Barrier(8), []
def work():
    barrier.wait()  # all run at the same time
    held.append(bytearray(4096))
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_arrays_between_what_stays_are_given_back() -> None:
    left = {
        how: int(subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, check=True, text=True).stdout)
        for how in ("asks", "does not")
    }
    assert left["asks"] < 2_000_000 < 10_000_000 < left["does not"], left


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_threads_share_two_heaps(tmp_path: Path) -> None:
    heaps = {}
    for how in ("asks", "does not"):
        file = tmp_path / how
        subprocess.run([sys.executable, "-c", HEAPS_SCRIPT, str(file), how], check=True)
        heaps[how] = file.read_text().count("<heap ")
    assert heaps["asks"] <= HEAPS < heaps["does not"], heaps
