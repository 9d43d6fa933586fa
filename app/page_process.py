"""How the page is started: a Streamlit process of its own, on the loopback interface unless told otherwise."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

from kvitals.app.page_settings import VARIABLE, PageSettings

ADDRESS = "127.0.0.1"
APP = Path(__file__).parents[1] / "ui" / "web" / "app.py"

# Colours that people with any colour vision can tell apart, dark enough on white and light enough on black.
_LINES_LIGHT = '["#0072B2", "#D55E00", "#007F5F", "#9B4F96", "#8A6D00", "#5A5A5A"]'
_LINES_DARK = '["#56B4E9", "#E69F00", "#2FBF9B", "#DDA0D8", "#F0E442", "#BBBBBB"]'

_OPTIONS = {
    "server.headless": "true",
    # These two refuse requests and WebSockets of other sites' pages.
    "server.enableCORS": "true",
    "server.enableXsrfProtection": "true",
    "browser.gatherUsageStats": "false",
}
# Nothing here may be missed for safety: versions of Streamlit that lack one of them ignore its variable.
_TASTE = {
    "client.showErrorDetails": "type",
    "client.showErrorLinks": "false",
    "client.toolbarMode": "minimal",
    "logger.hideWelcomeMessage": "true",  # `kvitals web` prints the address
    "logger.level": "error",
    "runner.magicEnabled": "false",
    "runner.postScriptGC": "false",  # 0.13 s of each answer on ten minutes of four engines; Python collects by itself
    "server.fileWatcherType": "none",
    "server.showEmailPrompt": "false",
    "theme.baseFontSize": "15",
    "theme.light.primaryColor": "#0B63A5",
    "theme.dark.primaryColor": "#2B7BBA",  # white text on it has 4.5:1
    "theme.dark.linkColor": "#56B4E9",
    "theme.light.chartCategoricalColors": _LINES_LIGHT,
    "theme.dark.chartCategoricalColors": _LINES_DARK,
}


def missing() -> str:
    """What to do where the page's libraries are not installed, or the empty string. The agent needs none of them."""
    if importlib.util.find_spec("streamlit") and importlib.util.find_spec("altair"):
        return ""
    return "the web page needs packages that the agent does not: pip install 'kvitals[ui]'"


def command(port: int, settings: PageSettings, address: str = ADDRESS) -> list[str]:
    """The command line that serves the page at `address`:`port`.

    Start it with `environment(settings)`, which is how the page learns what to show.
    `-P` keeps the current directory off Python's path: a file there must not replace a module.
    """
    chosen = _OPTIONS | {"server.address": address, "server.maxUploadSize": str(settings.upload_megabytes)}
    options = [f"--{name}={value}" for name, value in chosen.items()]
    return [sys.executable, "-P", "-m", "kvitals.ui.web.launch", "run", str(APP), f"--server.port={port}", *options]


def environment(settings: PageSettings) -> dict[str, str]:
    """This process's environment with the settings, and without a user's own of Streamlit."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("STREAMLIT_")}
    return {**inherited, **{_variable(k): v for k, v in _TASTE.items()}, VARIABLE: settings.encode()}


def _variable(option: str) -> str:
    """`theme.baseFontSize` as Streamlit's variable `STREAMLIT_THEME_BASE_FONT_SIZE`."""
    return "STREAMLIT_" + re.sub(r"(?<=[a-z])([A-Z])", r"_\1", option).replace(".", "_").upper()
