"""Power cuts and disk errors under everything that the agent reports as kept: history, spool and state.

`workload` writes with the product's own code in a process of its own, which strace records call by call. `disk` builds
from such a record what a disk can hold after a cut at any moment. `checks` opens that with the product's own code.
"""
