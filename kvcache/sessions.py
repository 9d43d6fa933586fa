"""Sessions, guessed from chains where nobody knows them.

The turns of a conversation repeat its beginning. What all prompts begin with is no conversation's own, but a system
prompt; so a request's session is the first block of its chain that is not *common*. Common is a block that over half of
all requests have, or after which requests go on in many different ways.
"""

from __future__ import annotations

import numpy as np

from kvitals.kvcache.accesses import UNKNOWN, Accesses, Ints

MANY_WAYS = 16
"""A block that so many different blocks follow is a beginning that conversations share."""


def sessions(accesses: Accesses) -> Ints:
    """A code for each access: the known session, else the guessed one; UNKNOWN where all of its blocks are common.

    Where a session is known for any access none is guessed.
    """
    if (accesses.session >= 0).any():
        return accesses.session
    blocks, code = np.unique(accesses.block, return_inverse=True)
    last = np.zeros(len(code), dtype=bool)
    last[accesses.start[1:][accesses.lengths > 0] - 1] = True
    steps = np.unique(np.stack((code[:-1], code[1:]))[:, ~last[:-1]], axis=1) if len(code) else np.zeros((2, 0), int)
    ways = np.bincount(steps[0], minlength=len(blocks))
    requests = np.bincount(code, minlength=len(blocks))
    own = ~((requests > len(accesses) / 2) | (ways >= MANY_WAYS))[code]
    row = np.repeat(np.arange(len(accesses)), accesses.lengths)
    found = np.full(len(accesses), UNKNOWN, dtype=np.int64)
    where = np.flatnonzero(own)[::-1]  # the first of a row is written last, and stays
    found[row[where]] = code[where]
    return found
