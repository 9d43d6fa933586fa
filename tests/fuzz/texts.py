"""What must hold of any text in a chat, a mail, a ticket or on a terminal: no active markup that was not ours."""

from __future__ import annotations

import io
import json
import re
import tempfile
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from rich.table import Table

from kvitals.app.escaping import html, markdown, plain
from kvitals.app.escaping.terminal import SafeConsole
from kvitals.app.notify.notice import Action, Link, Notice, NoticeAlert, NoticeNumber
from kvitals.app.notify.notice_requests import request
from kvitals.config import AlertmanagerTarget, NotifyTarget, PagerDutyTarget, SlackTarget, WebhookTarget

TextCheck = Callable[[str], None]
URL = "https://wiki.example.org/KVC01.html"
HOSTILE = [
    "<!channel>", "<!here|x>", "<@U024BE7LH>", "<#C024BE7LR>", "<https://evil.example|click>", "@here", "@channel",
    "https://evil.example/x", "http://evil.example", "www.evil.example", "mailto:a@evil.example", "*bold*", "_it_",
    "~gone~", "`code`", "```block```", "> quote", ":rotating_light:", ":100:", "&lt;!channel&gt;", "&amp;",
    "[click](https://evil.example)", "![x](https://evil.example/i.png)", "[x]: https://evil.example", "<b>x</b>",
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</td></tr></table><h1>", '" onmouseover="x',
    "a\\", "\\|", "a|b", "a\nb", "a\r\n\r\n# head", "# head", "- item", "1. item", "+ item", "===", "    code",
    "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\", "\x1b[2J\x1b[31mred", "\x9b31mred", "\x1b]0;title\x07",
    "a\u202egnp.exe", "a\u2066b", "\u200bhidden", "\U000e0041tag", "\x00", "\ud800", "a\tb", "x" * 5000, "&" * 3000,
    "<" * 3000, "`" * 999, "*_" * 999, "[" * 999, "[red]x[/red]", "$x^2$", "#123", "!5", "a@b",
]  # fmt: skip


def notice(text: str) -> Notice:
    """A notice that has a text in every place that takes one."""
    link = [Link(text, URL), Link("Runbook", URL)]
    alert = NoticeAlert(text, text, "page", text, text, 1.0, text)
    return Notice(
        id="i", incident="i", status="firing", change="new", severity="page", title=text, where=text,
        entity={"engine": text}, began=1.0, at=2.0, judged=text, code=text, verdict=text, confidence=text,
        numbers=[NoticeNumber(text, text)] * 6, actions=[Action(text, text, text, text)],
        explains=[text], ruled_out=[text],
        unknown=[text], alerts=[alert], links=link,
    )  # fmt: skip


@cache
def _secret() -> Path:
    path = Path(tempfile.mkdtemp(prefix="kvitals-texts-"), "secret")
    path.write_text("https://hooks.example.org/x")
    return path


def _sent(target: NotifyTarget, text: str) -> Any:
    return json.loads(request(target, notice(text)).body)


_LINK = re.compile(rf"<{re.escape(URL)}\|([^<>|]*)>")
_ENTITY = re.compile(r"&(?!(?:amp|lt|gt);)")


def slack(text: str) -> None:
    """Slack: `<` begins our links alone, and nothing pairs, calls or leads anywhere."""
    sent = _sent(SlackTarget(url_file=_secret()), text)
    assert sent["mrkdwn"] is False
    _is_inert_in_slack(sent["text"])
    for block in sent["blocks"]:
        several = [block.get("text"), *block.get("fields", ()), *block.get("elements", ())]
        for one in filter(None, several):
            assert 0 < len(one["text"]) <= 3000
            if one["type"] == "mrkdwn":
                assert one["verbatim"]
                _is_inert_in_slack(one["text"])
            else:
                assert not plain.ODD.search(one["text"])
    assert len(sent["blocks"]) <= 50


def _is_inert_in_slack(said: str) -> None:
    rest = _LINK.sub(lambda match: match[1], said)
    assert "<" not in rest and ">" not in rest, rest[:200]
    assert not _ENTITY.search(rest), rest[:200]
    ours = [line[1:-1] if len(line) > 1 and line[0] == line[-1] == "*" else line for line in rest.split("\n")]
    for line in ours:
        assert not re.search(r"[*~`]|(?<![^\W_])_|_(?![^\W_])", line), line[:200]
        assert "://" not in line and not re.search(r"@\w|:(?!\d{1,2}:)[\w+'-]+:", line), line[:200]
        assert not plain.ODD.search(line.replace("\u2060", "")), line[:200]


def pagerduty(text: str) -> None:
    """PagerDuty: plain text within its limits."""
    sent = _sent(PagerDutyTarget(key_file=_secret()), text)
    payload = sent["payload"]
    assert len(payload["summary"]) <= 1024
    assert all(len(payload[name]) <= 255 for name in ("source", "component", "group", "class"))
    for one in _strings([payload, sent["links"]]):
        assert len(one) <= 2000 and not plain.ODD.search(one), one[:200]
    assert {one["href"] for one in sent["links"]} == {URL}


def webhook(text: str) -> None:
    """A webhook's JSON: every text of the notice, with its line breaks and tabs and nothing else that is obeyed."""
    for one in _strings(_sent(WebhookTarget(url="http://127.0.0.1:9"), text)):
        assert not plain.ODD.search(one.replace("\n", "").replace("\t", "")), one[:200]


def alertmanager(text: str) -> None:
    """Labels are plain text; in annotations no tag, link or mention begins."""
    for one in _sent(AlertmanagerTarget(url="http://127.0.0.1:9093"), text):
        assert not any(plain.ODD.search(said) for said in _strings(one["labels"]))
        for said in one["annotations"].values():
            assert not plain.ODD.search(said) and len(said) <= 4000
            assert not re.search(r"<[!@#/A-Za-z]", said), said[:200]


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for one in (*value, *value.values()) for text in _strings(one)]
    if isinstance(value, list):
        return [text for one in value for text in _strings(one)]
    return [value] if isinstance(value, str) else []


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.said = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(f"{tag} {[name for name, _ in attrs]}")

    def handle_data(self, data: str) -> None:
        self.said += data


def page(text: str) -> None:
    """HTML: the tags are ours, and what is read is the text."""
    parser = _Tags()
    parser.feed(f'<p title="{html.text(text)}">{html.text(text)}</p>')
    parser.close()
    assert parser.tags == ["p ['title']"], parser.tags
    assert parser.said == plain.lines(text)


_MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
_INERT = {"text", "softbreak", "text_special"}


def document(text: str) -> None:
    """Markdown: a paragraph and a table's row hold the text and nothing else."""
    shown = markdown.text(text)
    for token in _MARKDOWN.parse(shown):
        assert token.type in ("paragraph_open", "paragraph_close", "inline"), (token.type, shown[:200])
        assert {one.type for one in token.children or ()} <= _INERT, shown[:200]
    assert "://" not in shown and not re.search(r"[@#!]\w|\bwww\.", shown), shown[:200]
    table = f"| a | b |\n|---|---|\n| {shown} | {markdown.code(text)} |\n"
    tokens = _MARKDOWN.parse(table)
    cells = [tokens[i + 1] for i, token in enumerate(tokens) if token.type == "td_open"]
    assert len(cells) == 2 and {one.type for one in cells[0].children or ()} <= _INERT, table[:200]
    assert [one.type for one in cells[1].children or ()] == ["code_inline"], table[:200]


def terminal(text: str) -> None:
    """The terminal: escape sequences are rich's own styles."""
    out = io.StringIO()
    console = SafeConsole(file=out, force_terminal=True, width=80, markup=False, emoji=False, highlight=False)
    table = Table.grid()
    table.add_row(text[:2000], "b")
    console.print(table)
    console.print(text[:2000], style="bold")
    rest = re.sub(r"\x1b\[\d+(?:;\d+)*m", "", out.getvalue())
    assert not plain.ODD.search(rest.replace("\n", "").replace("\t", "")), rest[:200]


CHECKS: dict[str, TextCheck] = {
    "slack": slack, "pagerduty": pagerduty, "alertmanager": alertmanager, "webhook": webhook, "html": page,
    "markdown": document, "terminal": terminal,
}  # fmt: skip
TOKENS = tuple(one.encode("utf-8", "replace") for one in HOSTILE if len(one) < 100)


def seeds() -> list[bytes]:
    return list(TOKENS)


def chat(data: bytes) -> None:
    """One text in every format that reaches people."""
    text = data.decode(errors="replace")
    for check in CHECKS.values():
        check(text)
