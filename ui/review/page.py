"""A review as one HTML page that holds all it needs: it can be mailed, and prints."""

from __future__ import annotations

from collections.abc import Sequence

from kvitals.app.escaping import html
from kvitals.diagnoser.review.result import Review
from kvitals.diagnoser.review.words import moment
from kvitals.ui.review.sections import Block, Chart, DataTable, Text, sections, tiles

SHORT = 16
"""Characters."""
STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 15px/1.5 -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; color: #23272d;
  background: #fff; max-width: 60rem; margin: 0 auto; padding: 2rem 1.5rem 3rem; }
header p { color: #6b7280; margin: 0 0 1.2rem; }
h1 { font-size: 1.55rem; line-height: 1.2; margin: 0 0 .2rem; letter-spacing: -.01em; }
h2 { font-size: 1.12rem; margin: 2.2rem 0 .6rem; padding-top: .9rem; border-top: 1px solid #e1e4e8; }
.story p { margin: 0 0 .55rem; max-width: 52rem; }
.story p:first-child { font-size: 1.1rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .7rem; margin: 0 0 1.2rem; }
.tiles div { flex: 1 1 8.5rem; border: 1px solid #e1e4e8; border-radius: 6px; padding: .55rem .8rem; }
.tiles b { display: block; font-size: 1.3rem; font-variant-numeric: tabular-nums; white-space: nowrap; }
.tiles span { color: #6b7280; font-size: .82rem; }
svg { display: block; width: 100%; height: auto; }
svg .a { font: 10px sans-serif; fill: #6b7280; }
svg .t { font: 12px sans-serif; fill: #30343a; }
figure { margin: .6rem 0 1rem; }
figcaption, .small { color: #6b7280; font-size: .82rem; }
.legend { margin: .2rem 0; font-size: .82rem; color: #4b5563; }
.legend span { margin-right: 1rem; white-space: nowrap; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .35em; border-radius: 2px;
  border: 1px solid #0001; vertical-align: -1px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 .8rem; font-size: .86rem;
  font-variant-numeric: tabular-nums; }
th { font-weight: 600; color: #4b5563; border-bottom: 1.5px solid #c9ced5; }
th, td { text-align: right; padding: .28rem .6rem; vertical-align: top; }
th.l, td.l { text-align: left; overflow-wrap: break-word; min-width: 4.5rem; }
td, .n { white-space: nowrap; }
td.l { white-space: normal; }
td.n { white-space: nowrap; }
th:first-child, td:first-child { padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
td { border-bottom: 1px solid #eceef1; }
tr.total td { font-weight: 600; border-top: 1.5px solid #c9ced5; border-bottom: 0; }
footer { margin-top: 2.5rem; color: #6b7280; font-size: .82rem; }
@media print {
  @page { margin: 14mm; }
  body { padding: 0; max-width: none; font-size: 10pt; }
  h2 { break-after: avoid; }
  figure, tr, .tiles { break-inside: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .wide { overflow: visible; }
}
"""


def page(review: Review) -> str:
    """The whole page."""
    title = f"Efficiency review, {moment(review.start)[:10]} to {moment(review.end)[:10]}"
    boxes = "".join(
        f"<div><b>{html.text(value)}</b><span>{html.text(what)}</span></div>" for value, what in tiles(review)
    )
    said = "".join(f"<p>{html.text(sentence)}</p>" for sentence in review.story)
    rest = "".join(
        f"<section><h2>{html.text(one.title)}</h2>{''.join(map(_block, one.blocks))}</section>"
        for one in sections(review)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.text(title)}</title><style>{STYLE}</style></head><body>"
        f"<header><h1>{html.text(title)}</h1><p>{moment(review.start)} to {moment(review.end)} UTC ·"
        f" {html.text(review.source)}</p></header>"
        f'<div class="tiles">{boxes}</div><div class="story">{said}</div>{rest}'
        f"<footer>Made by kvitals {moment(review.made)} UTC. The same numbers are in review.json and tables/.</footer>"
        "</body></html>\n"
    )


def _block(block: Block) -> str:
    if isinstance(block, Text):
        return f"<p{' class=small' if block.small else ''}>{html.text(block.text)}</p>"
    if isinstance(block, Chart):
        return f"<figure>{block.svg}<figcaption>{html.text(block.caption)}</figcaption></figure>"
    return _table(block)


def _table(table: DataTable) -> str:
    head = _cells(table.head, table.text, "th")
    rows = []
    for i, row in enumerate(table.rows):
        total = ' class="total"' if table.total and i == len(table.rows) - 1 else ""
        rows.append(f"<tr{total}>{_cells(row, table.text, 'td')}</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _cells(cells: Sequence[str], text: int, tag: str) -> str:
    return "".join(f"<{tag}{_class(cell, i < text)}>{html.text(cell)}</{tag}>" for i, cell in enumerate(cells))


def _class(cell: str, text: bool) -> str:
    """Texts are on the left; short ones are not broken."""
    names = [*(["l"] if text else []), *(["n"] if text and len(cell) <= SHORT else [])]
    return f' class="{" ".join(names)}"' if names else ""
