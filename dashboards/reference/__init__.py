"""Reference documents: made from the configuration's types and the knowledge, into `docs/`, so that none goes stale."""

from __future__ import annotations

import json
from pathlib import Path

from dashboards.reference import compatibility, configuration, metrics, rules
from rules import finding
from rules.loader import Knowledge

SCHEMA = "triage.schema.json"
DOCS = Path(__file__).parents[2] / "docs"


def files(knowledge: Knowledge, docs: Path = DOCS) -> dict[str, str]:
    """Every reference by its name in `docs`. The page of the configuration is a hand-written one with generated tables
    in it, so it is read from there. Raises ValueError where a key has no words yet, or a place no table."""
    return {
        configuration.FILE: configuration.filled((docs / configuration.FILE).read_text(encoding="utf-8")),
        metrics.FILE: metrics.page(knowledge),
        rules.FILE: rules.page(knowledge),
        compatibility.FILE: compatibility.page(),
        SCHEMA: json.dumps(finding.schema(), indent=1) + "\n",
    }
