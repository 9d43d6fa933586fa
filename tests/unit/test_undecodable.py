"""Whoever decodes bytes from outside expects all that a decoder raises."""

import ast

from tests.unit.test_floors import FLOOR, ROOT

PURE = {"kvcache"}  # imports nothing of the tree


def test_no_module_names_a_decoders_errors_one_by_one() -> None:
    wrong = []
    for package in FLOOR.keys() - PURE:
        for path in sorted((ROOT / package).rglob("*.py")):
            named = (n.attr for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute))
            if path.name != "undecodable.py" and {"DecodeError", "MsgspecError"} & set(named):
                wrong.append(str(path.relative_to(ROOT)))
    assert wrong == [], "name UNDECODABLE of kvitals.series.undecodable instead"
