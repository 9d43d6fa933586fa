"""`kvitals completion bash|zsh|fish`: a script for the shell, from the commands' own parsers.

The script is static: completing a word starts no Python.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kvitals.rules.loader import load
from kvitals.ui.cli.main import COMMANDS, SHORT, parser

_HELP_WORDS = 80
"""Characters of help beside an option."""


@dataclass(frozen=True)
class OptionWords:
    """An option: its flags, the values that it allows, and whether it takes one."""

    flags: tuple[str, ...]
    values: tuple[str, ...]
    takes_value: bool
    help: str


@dataclass(frozen=True)
class CommandWords:
    """A command, or one of its parts such as `config check`: what can follow it."""

    path: str
    help: str
    options: tuple[OptionWords, ...]
    words: tuple[str, ...]  # parts, or values of the first argument; empty: files

    @property
    def flags(self) -> list[str]:
        return [flag for option in self.options for flag in option.flags]


def script(shell: str) -> str:
    """The completion of a shell in `SHELLS`."""
    return SHELLS[shell](list(commands()))


def commands() -> Iterator[CommandWords]:
    """Every command and part of one, in the order of the help."""
    codes = tuple(sorted(load().rules))
    for name, line in COMMANDS.items():
        top = parser(name)
        made = next(_parts(top))[1][name]
        parts = dict(_parts(made))
        words = tuple(parts["what"]) if parts else codes if name == "explain" else _choices(made)
        yield CommandWords(name, line, () if parts else tuple(_options(made)), words)
        for part, inner in parts.get("what", {}).items():
            yield CommandWords(f"{name} {part}", inner.description or "", tuple(_options(inner)), _choices(inner))
    for name, (command, part) in SHORT.items():
        inner = dict(_parts(next(_parts(parser(command)))[1][command]))["what"][part]
        yield CommandWords(name, f"the same as {command} {part}", tuple(_options(inner)), ())


def _parts(of_parser: argparse.ArgumentParser) -> Iterator[tuple[str, Mapping[str, argparse.ArgumentParser]]]:
    for action in of_parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield "what", action.choices


def _options(of_parser: argparse.ArgumentParser) -> Iterator[OptionWords]:
    for action in of_parser._actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            values = tuple(map(str, action.choices or ()))
            words = " ".join((action.help or "").replace("%%", "%").split())[:_HELP_WORDS]
            yield OptionWords(tuple(action.option_strings), values, action.nargs != 0, words)


def _choices(of_parser: argparse.ArgumentParser) -> tuple[str, ...]:
    """The values of the first argument, where it allows only some."""
    first = next((action for action in of_parser._actions if not action.option_strings), None)
    return tuple(map(str, first.choices)) if first is not None and first.choices else ()


def _bash(known: list[CommandWords]) -> str:
    tops = [one.path for one in known if " " not in one.path]
    parents = sorted({one.path.partition(" ")[0] for one in known if " " in one.path})
    lines = [
        "# bash completion of kvitals. Load it with: source <(kvitals completion bash)",
        "_kvitals() {",
        '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"',
        '  local path="${COMP_WORDS[1]}" flags="" words=""',
        "  COMPREPLY=()",
        "  if (( COMP_CWORD == 1 )); then",
        f'    COMPREPLY=( $(compgen -W "{" ".join([*tops, "completion", "help", "--help", "--version"])}" -- "$cur") )',
        "    return",
        "  fi",
        f'  if (( COMP_CWORD > 2 )) && [[ " {" ".join(parents)} " == *" $path "* ]]; then',
        '    path="$path ${COMP_WORDS[2]}"',
        "  fi",
        '  case "$path" in',
        *(
            f'    {shlex.quote(one.path)}) flags="{" ".join(one.flags)}"; words="{" ".join(one.words)}" ;;'
            for one in known
        ),
        f'    help) words="{" ".join(tops)}" ;;',
        '    completion) words="bash zsh fish" ;;',
        "  esac",
        '  case "$path:$prev" in',
        *(
            f'    {_cases(one, option)}) COMPREPLY=( $(compgen -W "{" ".join(option.values)}" -- "$cur") ); return ;;'
            for one in known
            for option in one.options
            if option.takes_value
        ),
        "  esac",
        '  if [[ "$cur" == -* ]]; then words="$flags"; fi',
        '  COMPREPLY=( $(compgen -W "$words" -- "$cur") )',
        "}",
        "complete -o bashdefault -o default -F _kvitals kvitals  # without words: files",
    ]
    return "\n".join(lines) + "\n"


def _zsh(known: list[CommandWords]) -> str:
    def described(words: Iterator[tuple[str, str]]) -> str:
        return " ".join(shlex.quote(f"{word}:{text}".replace("\n", " ")) for word, text in words)

    tops = ((one.path.replace(":", "\\:"), one.help) for one in known if " " not in one.path)
    parents = sorted({one.path.partition(" ")[0] for one in known if " " in one.path})
    lines = [
        "#compdef kvitals",
        "# zsh completion of kvitals: kvitals completion zsh > ~/.zfunc/_kvitals, with ~/.zfunc in fpath",
        "_kvitals() {",
        "  local -a words_of flags_of",
        f"  local -a tops=({described(tops)} 'completion:completion for a shell' 'help:options of a command')",
        "  if (( CURRENT == 2 )); then _describe command tops; return; fi",
        '  local path_of="${words[2]}" before="${words[CURRENT-1]}"',
        f'  if (( CURRENT > 3 )) && [[ " {" ".join(parents)} " == *" $path_of "* ]]; then',
        '    path_of="$path_of ${words[3]}"',
        "  fi",
        '  case "$path_of:$before" in',
        *(
            f"    {_cases(one, option)}) {_zsh_values(option)}; return ;;"
            for one in known
            for option in one.options
            if option.takes_value
        ),
        "  esac",
        '  case "$path_of" in',
        *(
            f"    {shlex.quote(one.path)}) words_of=({' '.join(one.words)}); "
            f"flags_of=({described((flag, option.help) for option in one.options for flag in option.flags)}) ;;"
            for one in known
        ),
        "    completion) words_of=(bash zsh fish) ;;",
        "  esac",
        '  if [[ "${words[CURRENT]}" == -* ]]; then _describe option flags_of; return; fi',
        "  if (( ${#words_of} )); then compadd -- $words_of; else _files; fi",
        "}",
        'compdef _kvitals kvitals 2>/dev/null || _kvitals "$@"',
    ]
    return "\n".join(lines) + "\n"


def _zsh_values(option: OptionWords) -> str:
    return f"compadd -- {' '.join(map(shlex.quote, option.values))}" if option.values else "_files"


def _cases(command: CommandWords, option: OptionWords) -> str:
    """The patterns of a shell's `case` for the word after an option."""
    return "|".join(shlex.quote(f"{command.path}:{flag}") for flag in option.flags)


def _fish(known: list[CommandWords]) -> str:
    lines = ["# fish completion of kvitals: kvitals completion fish > ~/.config/fish/completions/kvitals.fish"]
    extra = [CommandWords("completion", "completion for a shell", (), ("bash", "zsh", "fish"))]
    for one in [*known, *extra]:
        top, _, part = one.path.partition(" ")
        seen = f"__fish_seen_subcommand_from {top}" + (f"; and __fish_seen_subcommand_from {part}" if part else "")
        if not part:
            lines.append(f"complete -c kvitals -n __fish_use_subcommand -f -a {top} -d {_fish_quoted(one.help)}")
        if one.words:
            lines.append(f"complete -c kvitals -n {_fish_quoted(seen)} -f -a {_fish_quoted(' '.join(one.words))}")
        for option in one.options:
            flags = " ".join(f"-l {f[2:]}" if f.startswith("--") else f"-s {f[1:]}" for f in option.flags)
            values = f" -x -a {_fish_quoted(' '.join(option.values))}" if option.values else " -r" * option.takes_value
            lines.append(f"complete -c kvitals -n {_fish_quoted(seen)} {flags}{values} -d {_fish_quoted(option.help)}")
    return "\n".join(lines) + "\n"


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SHELLS: Mapping[str, Callable[[list[CommandWords]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
