"""A review as Markdown: for a ticket, a chat, or a diff with the last one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diagnoser.review.result import Review
from diagnoser.review.words import moment
from ui.review.sections import Block, Chart, Table, sections, tiles

_SPECIAL = str.maketrans({"|": "\\|", "\n": " ", "\r": " ", "<": "&lt;", "*": "\\*", "`": "\\`"})


def markdown(review: Review) -> str:
    """The whole document. Charts are left out; their numbers are in the tables."""
    lines = [
        f"# Efficiency review, {moment(review.start)} to {moment(review.end)} UTC",
        "",
        *(f"{_text(sentence)}\n" for sentence in review.story),
        " · ".join(f"**{_text(value)}** {_text(what)}" for value, what in tiles(review)),
        "",
    ]
    for section in sections(review):
        lines += [f"## {section.title}", ""]
        for block in section.blocks:
            lines += [*_block(block), ""]
    lines.append(f"Source: {_text(review.source)}. Made {moment(review.made)} UTC by kvitals.")
    return "\n".join(lines) + "\n"


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Table):
        yield _row(block.head)
        yield _row([":--" if i < block.text else "--:" for i in range(len(block.head))])
        for i, row in enumerate(block.rows):
            bold = block.total and i == len(block.rows) - 1
            yield _row([f"**{_text(cell)}**" if bold and cell else _text(cell) for cell in row])
    elif not isinstance(block, Chart):
        yield f"_{_text(block.text)}_" if block.small else _text(block.text)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    return text.translate(_SPECIAL)
