"""The registry of collectors: every record has one collector, and docs/design.md shows the same table."""

import re
from pathlib import Path
from typing import get_args

from kvitals.agent.node import Node
from kvitals.agent.records import Record
from kvitals.config import Config

DESIGN = Path(__file__).parents[3] / "docs" / "design.md"
ROW = re.compile(r"^\| `(\w+Collector)` \| ([^|]+) \|", re.MULTILINE)


def test_each_type_of_record_has_one_collector() -> None:
    kinds = [kind for collector in Node(Config()).registry for kind in collector.records]
    assert sorted(kind.__name__ for kind in kinds) == sorted(kind.__name__ for kind in get_args(Record))


def test_the_table_of_the_design_is_the_registry() -> None:
    shown = [(name, re.findall(r"`(\w+)`", records)) for name, records in ROW.findall(DESIGN.read_text("utf-8"))]
    registered = [(type(one).__name__, [kind.__name__ for kind in one.records]) for one in Node(Config()).registry]
    assert shown == registered


def test_a_recorded_node_has_nothing_to_read_but_pages() -> None:
    node = Node(Config())
    assert [type(one).__name__ for one in node.registry if one.supported] == ["PageCollector"]
