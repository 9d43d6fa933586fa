"""How a proof reaches the history of this node's agent: as a file beside it, which the agent writes down as an event.

One process owns a history, so `kvitals prove` does not write to it.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from kvitals.diagnoser.change_proof import Proof
from kvitals.series.files import FileInUseError, lock_file, make_directory, read_regular, replace_file
from kvitals.series.history.event_log import HistoryEvent
from kvitals.series.history.schema import LOCK
from kvitals.series.json_text import encode_json
from kvitals.series.undecodable import UNDECODABLE

OUTCOMES = "outcomes"
"""The directory of the files, in that of the history."""
KIND, SOURCE = "outcome", "prove"
MAX_BYTES = 1 << 20
MAX_FILES = 100
"""That are read at one time; the others wait."""


def leave_outcome(history: Path, proof: Proof) -> bool:
    """Leave a proof for the agent that writes this history. False where there is no history. Raises OSError."""
    if not history.exists():
        return False
    folder = history.parent / OUTCOMES
    make_directory(folder)
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(proof.ended))}-{proof.begun:.3f}.json"
    replace_file(folder / name, encode_json(proof))
    return True


def is_kept_by_agent(history: Path) -> bool:
    """Whether an agent writes this history now. Raises OSError."""
    try:
        os.close(lock_file(history.with_name(LOCK)))
    except FileInUseError:
        return True
    return False


def collected_outcomes(folder: Path) -> list[HistoryEvent]:
    """The events of the proofs in a folder, which is empty afterwards. What cannot be read is removed as well."""
    events = []
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob("*.json"))[:MAX_FILES]:
            with contextlib.suppress(*UNDECODABLE, OSError):
                events.append(outcome_of(msgspec.json.decode(read_regular(path, MAX_BYTES), type=Proof)))
            path.unlink(missing_ok=True)
    return events


def outcome_of(proof: Proof) -> HistoryEvent:
    """The event of a proof."""
    changed = ", ".join(proof.changed) or proof.apply
    text = f"{proof.entity.title}, {changed}: {proof.conclusion} {proof.state}."
    return HistoryEvent(proof.ended, KIND, text, SOURCE, proof.entity.labels)
