"""Memory that is freed goes back, in a process that asks for it."""

import platform
import subprocess
import sys

import pytest

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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_arrays_between_what_stays_are_given_back() -> None:
    left = {
        how: int(subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, check=True, text=True).stdout)
        for how in ("asks", "does not")
    }
    assert left["asks"] < 2_000_000 < 10_000_000 < left["does not"], left
