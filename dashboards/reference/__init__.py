"""Reference documents: made from the configuration's types and the knowledge, into `docs/`, so that none goes stale."""

from __future__ import annotations

import json
from pathlib import Path

from kvitals.dashboards.reference import compatibility, configuration, glossary, metrics, rules, security, seeds, sizing
from kvitals.rules import finding
from kvitals.rules.loader import Knowledge

SCHEMA = "triage.schema.json"
DOCS = Path(__file__).resolve().parents[2] / "docs"


def files(knowledge: Knowledge, docs: Path = DOCS) -> dict[str, str]:
    """Every reference by its name in `docs`. Four pages are hand-written ones with generated tables in them, so they
    are read from there: configuration, words, security, sizing. Raises ValueError where a key has no words yet, or a
    place no table."""
    return {
        configuration.FILE: configuration.fill_tables((docs / configuration.FILE).read_text(encoding="utf-8")),
        glossary.FILE: glossary.fill_glossary((docs / glossary.FILE).read_text(encoding="utf-8")),
        sizing.FILE: sizing.fill_published((docs / sizing.FILE).read_text(encoding="utf-8")),
        security.FILE: security.fill_listeners((docs / security.FILE).read_text(encoding="utf-8")),
        metrics.FILE: metrics.page(knowledge),
        rules.FILE: rules.page(knowledge),
        compatibility.FILE: compatibility.page(),
        seeds.FILE: seeds.page(knowledge),
        SCHEMA: json.dumps(finding.schema(), indent=1) + "\n",
    }
