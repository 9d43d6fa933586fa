"""Reading flags from sources, in each of the ways in which engines declare them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvitals.rules.engine_flags import FlagState
from tests.flags import engines
from tests.flags.sources import Sources, added, of_annotations, of_fields

CLASSES = """
from typing import Literal
Cache = Literal["auto", "fp8"]
BUDGET = 4 * 1024
class Base:
    host: str = "localhost"
class Config(Base):
    dtype: Cache = "auto"
    eager: bool = False
    budget: int = BUDGET
    names: list[str] = field(default_factory=list)
    made: str = make()
"""


def sources(tmp_path: Path, text: str) -> Sources:
    (tmp_path / "a.py").write_text(CLASSES + text)
    found = Sources(tmp_path)
    found.add("*.py")
    return found


def calls(tmp_path: Path, text: str, kwargs: dict[str, str] | None = None) -> dict[str, FlagState]:
    read = sources(tmp_path, f"def add(parser):\n    {text}\n")
    return {state.flag: state for state in added(read, read.functions["add"], kwargs)}


def test_a_plain_call(tmp_path: Path) -> None:
    known = calls(tmp_path, 'parser.add_argument("--max_n", "-n", type=int, default=BUDGET, choices=[4096, 1])')
    assert known == {"--max-n": FlagState("--max-n", default="4096", choices=("4096", "1"), aliases=("-n",))}


def test_a_switch_is_off_until_given(tmp_path: Path) -> None:
    assert calls(tmp_path, 'parser.add_argument("--x", action="store_true")')["--x"] == FlagState(
        "--x", kind="switch", default="off"
    )


def test_one_and_zero_are_numbers_and_not_switches(tmp_path: Path) -> None:
    assert calls(tmp_path, 'parser.add_argument("--x", default=1)')["--x"].default == "1"
    assert calls(tmp_path, 'parser.add_argument("--x", default=0)')["--x"].default == "0"


def test_the_default_of_a_class(tmp_path: Path) -> None:
    assert calls(tmp_path, 'parser.add_argument("--x", default=Config.budget)')["--x"].default == "4096"


def test_a_field_of_a_configuration(tmp_path: Path) -> None:
    known = calls(tmp_path, 'g.add_argument("--kv", **kw["dtype"])', {"kw": "Config"})
    assert known["--kv"] == FlagState("--kv", default="auto", choices=("auto", "fp8"))
    known = calls(tmp_path, 'g.add_argument("--kv", **{**kw["eager"], "default": None})', {"kw": "Config"})
    assert known["--kv"] == FlagState("--kv", kind="negatable", default="none")


def test_a_calculated_default_is_not_known(tmp_path: Path) -> None:
    assert calls(tmp_path, 'parser.add_argument("--x", default=make())')["--x"].default == ""


def test_a_flag_for_each_field(tmp_path: Path) -> None:
    known = {state.flag: state.default for state in of_fields(sources(tmp_path, ""), "Config")}
    assert known == {
        "--host": "localhost",
        "--dtype": "auto",
        "--eager": "off",
        "--budget": "4096",
        "--names": "[]",
        "--made": "",
    }


def test_annotated_fields(tmp_path: Path) -> None:
    read = sources(
        tmp_path,
        "class Args:\n"
        '    tp: A[int, Arg(help="x", cli_name="--tensor-size", aliases=["--tp"])] = 1\n'
        '    on: A[bool, "help"] = False\n'
        "    inner: A[int, Arg(no_cli=True)] = 1\n"
        "    plain: int = 1\n"
        '    which: A[Cache, "help"] = "auto"\n',
    )
    assert list(of_annotations(read, "Args")) == [
        FlagState("--tensor-size", default="1", aliases=("--tp",)),
        FlagState("--on", kind="switch", default="off"),
        FlagState("--which", default="auto", choices=("auto", "fp8")),
    ]


@pytest.mark.parametrize(
    "arguments, replaced",
    [
        ('action=DeprecatedStoreTrueAction, new_flag="--new"', "--new"),
        ('help="(Deprecated: use --new instead) x"', "--new"),
        ('help="[DEPRECATED] will go."', "yes"),
        ('action=DeprecatedAction, error_message="use --new"', "refused"),
        ('help="Values of deprecated kernels."', ""),
    ],
)
def test_deprecation(tmp_path: Path, arguments: str, replaced: str) -> None:
    assert calls(tmp_path, f'parser.add_argument("--old", {arguments})')["--old"].deprecated == replaced


def test_flags_in_a_loop(tmp_path: Path) -> None:
    known = calls(
        tmp_path, 'for arg, type in [("--a", str), ("--b", bool)]:\n        g.add_argument(arg, deprecated=True)'
    )
    assert {flag: state.deprecated for flag, state in known.items()} == {"--a": "yes", "--b": "yes"}


def test_sources_that_moved_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only 0 flags found in the sources of vllm: its files have moved"):
        engines.vllm_flags(tmp_path)
