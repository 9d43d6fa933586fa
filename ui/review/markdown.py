"""A review as Markdown: for a ticket, a chat, or a diff with the last one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvitals.app.escaping.markdown import text
from kvitals.diagnoser.review.result import Review
from kvitals.diagnoser.review.words import moment
from kvitals.ui.review.sections import Block, Chart, DataTable, sections, tiles


def markdown(review: Review) -> str:
    """The whole document. Charts are left out; their numbers are in the tables."""
    lines = [
        f"# Efficiency review, {moment(review.start)} to {moment(review.end)} UTC",
        "",
        *(f"{text(sentence)}\n" for sentence in review.story),
        " · ".join(f"**{text(value)}** {text(what)}" for value, what in tiles(review)),
        "",
    ]
    for section in sections(review):
        lines += [f"## {text(section.title)}", ""]
        for block in section.blocks:
            lines += [*_block(block), ""]
    lines.append(f"Source: {text(review.source)}. Made {moment(review.made)} UTC by kvitals.")
    return "\n".join(lines) + "\n"


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, DataTable):
        yield _row([text(cell) for cell in block.head])
        yield _row([":--" if i < block.text else "--:" for i in range(len(block.head))])
        for i, row in enumerate(block.rows):
            bold = block.total and i == len(block.rows) - 1
            yield _row([f"**{text(cell)}**" if bold and cell else text(cell) for cell in row])
    elif not isinstance(block, Chart):
        yield f"_{text(block.text)}_" if block.small else text(block.text)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
