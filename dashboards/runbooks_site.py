"""The runbooks as a small static site: one HTML file per page, one style sheet, nothing from elsewhere."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt

from kvitals.dashboards.runbooks import FOLDER, INDEX, files
from kvitals.rules.loader import Knowledge

STYLE = "style.css"
HOME = "index.html"
_CSS = """\
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif; color: #1c1e21; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
a { color: #0b57d0; } code { font-size: .9em; background: #f2f3f5; padding: .1em .3em; border-radius: 3px; }
pre { background: #f2f3f5; padding: .8rem; overflow-x: auto; border-radius: 4px; } pre code { padding: 0; }
li { margin: .2rem 0; }
blockquote { margin: 1rem 0; padding: .2rem 1rem; border: 1px solid #0b57d0; border-radius: 4px; }
@media (prefers-color-scheme: dark) {
  body { color: #e4e6eb; background: #18191a; } a { color: #8ab4f8; } code, pre { background: #2a2c2e; }
}
"""
_LINK = re.compile(r'href="([A-Z]{3}\d{2}|README)\.md"')


def site(knowledge: Knowledge) -> dict[str, str]:
    """Every file of the site by its name."""
    markdown = MarkdownIt("commonmark")  # knows no scripts: the pages' own HTML is text
    markdown.options["html"] = False
    found = {STYLE: _CSS}
    for path, text in files(knowledge).items():
        name = Path(path).relative_to(FOLDER)
        title = text.partition("\n")[0].removeprefix("# ")
        body = _LINK.sub(_target, markdown.render(text))
        found[HOME if name.name == INDEX else f"{name.stem}.html"] = _page(title, body)
    return found


def write(knowledge: Knowledge, folder: Path) -> int:
    """Write the site; the number of its pages. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    made = site(knowledge)
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    return len(made) - 1


def _target(found: re.Match[str]) -> str:
    return f'href="{HOME if found[1] == "README" else found[1] + ".html"}"'


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="stylesheet" href="{STYLE}">\n</head>\n<body>\n<nav><a href="{HOME}">All runbooks</a></nav>\n'
        f"<main>\n{body}</main>\n</body>\n</html>\n"
    )
