"""`kvitals rules new`, `test` and `lint`: rules of one's own, from a file to start from to one that is right."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from kvitals.app.errors import UsageError
from kvitals.config.checks import first_of
from kvitals.diagnoser.cases.case import CaseFile, read, read_all
from kvitals.diagnoser.cases.running import Bench
from kvitals.rules import authoring
from kvitals.rules.loader import ROOT, RULE_FOLDERS, Knowledge, KnowledgeProblem, load
from kvitals.ui.cli.common import (
    EXIT_FINDINGS,
    EXIT_HEALTHY,
    add_config_option,
    answer_console,
    configuration,
    write_whole,
)
from kvitals.ui.cli.narrow import print_hanging, print_to_copy

CODE, NAME = re.compile(r"[A-Z]{3}[0-9]{2}"), re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
EXAMPLE_CODE, EXAMPLE_NAME = "OWN01", "too-many-wait"
FOLDER = Path("rules.d")


def add(commands: Any) -> None:
    new = commands.add_parser("new", help="write a rule and its cases to start from")
    new.add_argument("code", metavar="CODE", help="three letters and two digits; no shipped rule uses OWN01 to OWN99")
    new.add_argument("name", metavar="NAME", help="words-with-dashes")
    new.add_argument("--dir", type=Path, default=FOLDER, metavar="DIR", help=f"your directory of rules ({FOLDER})")
    new.set_defaults(do=start)
    tested = commands.add_parser("test", help="run the cases of your own rules")
    _add_paths(tested, "directories of rules, or case files")
    tested.add_argument("--verbose", "-v", action="store_true", help="print every case, including those that pass")
    tested.set_defaults(do=test)
    linted = commands.add_parser("lint", help="defects in your own rules, with file and line")
    _add_paths(linted, "directories of rules")
    linted.set_defaults(do=lint)


def _add_paths(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "path", nargs="*", type=Path, metavar="PATH", help=f"{what} (default: `rules` of the configuration)"
    )
    add_config_option(parser)


def start(args: argparse.Namespace) -> int:
    code, name = args.code.upper(), args.name
    if not CODE.fullmatch(code):
        raise UsageError(f"{args.code} is not a code: write three letters and two digits, such as OWN01")
    if not NAME.fullmatch(name):
        raise UsageError(f"{name} is not a name: write lower case letters, digits and dashes, such as too-many-wait")
    known = load([args.dir] if args.dir.is_dir() else [])
    if code in known.rules:
        raise UsageError(f"{code} is already used by {known.files[code]}; codes are never reused")
    rule, cases = args.dir / "codes" / f"{code}-{name}.yaml", args.dir / "cases" / f"{code}.yaml"
    if taken := [path for path in (rule, cases, *rule.parent.glob(f"{code}-*.yaml")) if path.exists()]:
        raise UsageError(f"{taken[0]} exists, nothing was written")
    for path in (rule, cases):
        template = next((authoring.TEMPLATE / path.parent.name).glob("*.yaml")).read_text(encoding="utf-8")
        write_whole(path, template.replace(EXAMPLE_CODE, code).replace(EXAMPLE_NAME, name), "--dir", parents=True)
    console = answer_console()
    for path in (rule, cases):
        print_to_copy(str(path), console)
    for title, command in (
        ("run its cases", "rules test"),
        ("list what remains to be written", "rules lint"),
        ("use it", "triage --rules"),
    ):
        console.print(f"{title}:")
        print_to_copy(f"  kvitals {command} {args.dir}", console)
    return EXIT_HEALTHY


def test(args: argparse.Namespace) -> int:
    wanted = _wanted(args)
    knowledge = load(wanted.own)
    console = answer_console()
    problems = [*(p for p in knowledge.problems if wanted.has(p.file)), *wanted.problems]
    bench, run = Bench(knowledge), 0
    for file in wanted.files:
        if file.code not in knowledge.rules:
            problems.append(_nobodys(file))
            continue
        for case, line in file:
            different = bench.differences(file.code, case)
            problems += [KnowledgeProblem(file.path, line, f"{file.code}: {case.title}: {text}") for text in different]
            run += 1
            if args.verbose:
                print_hanging(f"{'FAIL' if different else 'pass'}  {file.code}: {case.title}", console, 6)
    codes = {file.code for file in wanted.files}
    if not wanted.alone:
        problems += [_without_cases(code, path) for code, path in _rules(knowledge, wanted.own) if code not in codes]
    if not run and not problems:
        raise UsageError(f"{', '.join(map(str, [*wanted.directories, *wanted.alone]))}: contains no cases")
    rules = len(codes & knowledge.rules.keys())
    return _end(problems, f"{_number(run, 'case')} of {_number(rules, 'rule')}", console)


def lint(args: argparse.Namespace) -> int:
    wanted = _wanted(args)
    if wanted.alone:
        raise UsageError(
            f"{wanted.alone[0]} is not a directory of rules, which has at least one of: {', '.join(RULE_FOLDERS)}"
        )
    knowledge = load(wanted.own)
    problems = [problem for directory in wanted.directories for problem in authoring.lint(knowledge, directory)]
    problems += [*wanted.problems, *(_nobodys(file) for file in wanted.files if file.code not in knowledge.rules)]
    for code, path in _rules(knowledge, wanted.own):  # of those that ship the cases are with the tests
        problems += _missing(code, path, wanted.files, knowledge)
    files = sum(wanted.has(path) for path in knowledge.files.values())
    return _end(problems, _number(files, "rule or lever", "rules and levers"), answer_console())


def _rules(knowledge: Knowledge, directories: Sequence[Path]) -> list[tuple[str, Path]]:
    """The rules of some directories, with their files."""
    files = ((code, knowledge.files[code]) for code in sorted(knowledge.rules))
    return [(code, path) for code, path in files if any(path.is_relative_to(one) for one in directories)]


@dataclass
class _Wanted:
    """What paths on the command line stand for."""

    directories: list[Path] = field(default_factory=list)  # of rules
    alone: list[Path] = field(default_factory=list)  # case files, or folders of them, that were named by themselves
    files: list[CaseFile] = field(default_factory=list)
    problems: list[KnowledgeProblem] = field(default_factory=list)  # of case files

    @property
    def own(self) -> list[Path]:
        """The directories that do not ship."""
        return [directory for directory in self.directories if directory != ROOT]

    def has(self, path: Path) -> bool:
        """Whether a file is in one of the directories."""
        return any(path.is_relative_to(directory) for directory in self.directories)

    def take(self, path: Path) -> None:
        """Take what one path names: a directory of rules, a folder of case files or a case file."""
        if not path.exists():
            raise UsageError(f"{path}: no such file or directory")
        if path.is_dir() and _is_of_rules(path):
            if (directory := ROOT if path.resolve() == ROOT.resolve() else path) not in self.directories:
                self.directories.append(directory)
                self._take_cases(path / "cases")
            return
        self.alone.append(path)
        home = path.resolve().parent if path.is_dir() else path.resolve().parent.parent
        if _is_of_rules(home) and home not in self.directories:
            self.directories.append(home)  # the rules that these are cases of
        self._take_cases(path)

    def _take_cases(self, path: Path) -> None:
        if path.is_dir():
            files, problems = read_all(path)
            self.files += files
            self.problems += problems
        elif path.exists():
            one = read(path)
            (self.problems if isinstance(one, KnowledgeProblem) else self.files).append(one)  # type: ignore[arg-type]


def _wanted(args: argparse.Namespace) -> _Wanted:
    paths: Sequence[Path] = args.path or configuration(args).agent.rules
    if not paths:
        raise UsageError("name a directory of rules; `kvitals rules new OWN01 NAME` starts one")
    wanted = _Wanted()
    for path in paths:
        wanted.take(path)
    return wanted


def _is_of_rules(path: Path) -> bool:
    return any((path / part).is_dir() for part in RULE_FOLDERS)


def _missing(code: str, path: Path, files: Sequence[CaseFile], knowledge: Knowledge) -> list[KnowledgeProblem]:
    """The outcomes of which a rule has no case."""
    mine = [file for file in files if file.code == code]
    if not mine:
        return [_without_cases(code, path)]
    there = {case.expect for file in mine for case in file.cases}
    missing = sorted(authoring.wanted_outcomes(knowledge.rules[code], knowledge) - there)
    return [KnowledgeProblem(mine[0].path, 1, f"no case of {code} expects {outcome}") for outcome in missing]


def _without_cases(code: str, path: Path) -> KnowledgeProblem:
    return KnowledgeProblem(path, 1, f"{code} has no cases: write some in {path.parent.parent / 'cases' / code}.yaml")


def _nobodys(file: CaseFile) -> KnowledgeProblem:
    return KnowledgeProblem(file.path, 1, f"rule {file.code} does not exist, or could not be loaded")


def _end(problems: Sequence[KnowledgeProblem], what: str, console: Console) -> int:
    for line in first_of([str(problem) for problem in problems]):
        print_to_copy(line, console, "red")  # in one line, so that an editor finds its file and line number
    if problems:
        console.print(f"{what}: {_number(len(problems), 'problem')}")
        return EXIT_FINDINGS
    console.print(f"{what}: all is well")
    return EXIT_HEALTHY


def _number(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"
