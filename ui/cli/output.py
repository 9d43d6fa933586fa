"""`-o FORMAT`: one document as a terminal, a program, a ticket, a chat or a mail takes it.

A command describes what it prints once, as a `PrintedDocument`. There is one renderer for each format, and each escapes
what comes from outside for its own format.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from kvitals.app.escaping import html, markdown, slack
from kvitals.app.escaping.json import escape_unseen, yaml_text
from kvitals.app.escaping.terminal import SafeConsole
from kvitals.ui.cli.common import answer_console

WIDE_COLUMNS = 200
PASTED_COLUMNS = 100
"""How wide a text is that is pasted into a ticket or a chat."""

MAX_SLACK = 3000
"""Characters of one text in Slack; it refuses longer ones."""


@dataclass(frozen=True)
class Block:
    """A part of a document: a paragraph, or with `items` a heading and its list."""

    text: str
    items: tuple[Item, ...] = ()


@dataclass(frozen=True)
class Item:
    """An entry of a list: text, something to copy, and what is said of it."""

    text: str
    code: str = ""
    detail: str = ""


@dataclass(frozen=True)
class PrintedDocument:
    """What a command prints. `blocks` is the document in parts; None: its text is one part."""

    title: str
    show: Callable[[Console], None]
    encode: Callable[[], str]  # as JSON
    blocks: Callable[[], Sequence[Block]] | None = None

    def text(self, columns: int = PASTED_COLUMNS) -> str:
        """The terminal's text, without colours and without blanks at the ends of lines."""
        file = io.StringIO()
        self.show(SafeConsole(file=file, width=columns, color_system=None, highlight=False, markup=False, emoji=False))
        return "\n".join(line.rstrip() for line in file.getvalue().strip("\n").splitlines())


def add_output_options(parser: argparse.ArgumentParser, json_help: str) -> None:
    """`-o FORMAT`, and `--json` as its alias."""
    parser.add_argument(
        "-o", "--output", choices=tuple(FORMATS), default="text", metavar="FORMAT",
        help=f"{', '.join(FORMATS)} (text); md, slack and html are for pasting",
    )  # fmt: skip
    parser.add_argument("--json", dest="output", action="store_const", const="json", help=f"-o json: {json_help}")


def emit(document: PrintedDocument, output: str) -> None:
    """Print a document in a format of `FORMATS`."""
    FORMATS[output](document)


def is_text(args: argparse.Namespace) -> bool:
    """Whether the answer is for a terminal, so that notes may stand around it."""
    return args.output in ("text", "wide")


def _text(document: PrintedDocument) -> None:
    document.show(answer_console())


def _wide(document: PrintedDocument) -> None:
    document.show(answer_console(WIDE_COLUMNS))


def _json(document: PrintedDocument) -> None:
    sys.stdout.write(escape_unseen(document.encode().rstrip("\n")) + "\n")


def _yaml(document: PrintedDocument) -> None:
    sys.stdout.write(yaml_text(json.loads(document.encode()), PASTED_COLUMNS))


def _markdown(document: PrintedDocument) -> None:
    sys.stdout.write("\n\n".join(_markdown_parts(document)) + "\n")


def _markdown_parts(document: PrintedDocument) -> Iterator[str]:
    yield f"**{markdown.text(document.title)}**"
    if document.blocks is None:
        yield markdown.block(document.text())
        return
    for block in document.blocks():
        if not block.items:
            yield markdown.text(block.text)
            continue
        lines = [f"**{markdown.text(block.text)}**", ""]
        for item in block.items:
            copied = f": {markdown.code(item.code)}" if item.code else ""
            lines.append(f"- {markdown.text(item.text)}{copied}")
            lines += [f"  - {markdown.text(item.detail)}"] if item.detail else []
        yield "\n".join(lines)


def _slack(document: PrintedDocument) -> None:
    parts = list(_slack_parts(document))
    sys.stdout.write(slack.join_mrkdwn("\n", parts, MAX_SLACK) + "\n")


def _slack_parts(document: PrintedDocument) -> Iterator[slack.Mrkdwn]:
    yield slack.bold(slack.text(document.title))
    if document.blocks is None:
        lines = document.text(columns=80).splitlines()
        while len(slack.block("\n".join(lines))) > MAX_SLACK - 300 and lines:  # what stands first is kept
            lines = [*lines[:-2], "..."]
        yield slack.block("\n".join(lines))
        return
    for block in document.blocks():
        yield slack.bold(slack.text(block.text)) if block.items else slack.text(block.text)
        for item in block.items:
            copied = f": {slack.code(item.code)}" if item.code else ""
            detail = f"\n    {slack.text(item.detail)}" if item.detail else ""
            yield slack.Mrkdwn(f"• {slack.text(item.text)}{copied}{detail}")


def _html(document: PrintedDocument) -> None:
    sys.stdout.write("\n".join(_html_parts(document)) + "\n")


def _html_parts(document: PrintedDocument) -> Iterator[str]:
    yield f"<p><strong>{html.text(document.title)}</strong></p>"
    if document.blocks is None:
        yield f"<pre>{html.text(document.text())}</pre>"
        return
    for block in document.blocks():
        if not block.items:
            yield f"<p>{html.text(block.text)}</p>"
            continue
        yield f"<p><strong>{html.text(block.text)}</strong></p>\n<ul>"
        for item in block.items:
            copied = f": <code>{html.text(item.code)}</code>" if item.code else ""
            detail = f"<br><small>{html.text(item.detail)}</small>" if item.detail else ""
            yield f"<li>{html.text(item.text)}{copied}{detail}</li>"
        yield "</ul>"


FORMATS: dict[str, Callable[[PrintedDocument], None]] = {
    "text": _text, "wide": _wide, "json": _json, "yaml": _yaml, "md": _markdown, "slack": _slack, "html": _html,
}  # fmt: skip
