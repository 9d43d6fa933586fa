"""What axe-core finds on a page that a Chromium shows."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from selenium import webdriver

SERIOUS = ("serious", "critical")
RUN = """
const done = arguments[arguments.length - 1];
axe.run(document, {runOnly: {type: 'tag', values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']},
  resultTypes: ['violations']}).then(
    r => done(r.violations), e => done([{id: String(e), impact: 'critical', nodes: [{target: [], html: ''}]}]));
"""


@cache
def script() -> str:
    """axe-core, from the package that ships it. The package itself is for another driver and is not imported."""
    spec = find_spec("axe_playwright_python")
    assert spec is not None and spec.origin is not None, "install the extra `dev`"
    return Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8")


def serious_findings(driver: webdriver.Chrome) -> list[str]:
    """A line for each element of the page with a serious or critical finding."""
    driver.execute_script(script())
    driver.set_script_timeout(60)
    found: list[dict[str, Any]] = driver.execute_async_script(RUN)
    return [
        f"{one['id']} ({one['impact']}): {' '.join(map(str, node['target']))}: {node['html'][:160]}"
        for one in found
        if one["impact"] in SERIOUS
        for node in one["nodes"]
    ]
