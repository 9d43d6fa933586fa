"""Streamlit's command line, which asks nobody outside for this machine's address, with what pages need read in before
somebody comes."""

from __future__ import annotations

import importlib
import threading

from streamlit import net_util
from streamlit.web import cli

WHOLE = ("pandas", "pyarrow", "altair")
"""Read in before any page is drawn: Altair looks at Pandas through sys.modules, where another page's thread may just
be half way through importing it."""


def main() -> None:
    """Serve. Streamlit would ask a host on the Internet for this machine's address at a request from elsewhere."""
    net_util.get_external_ip = lambda: None
    for module in WHOLE:
        importlib.import_module(module)
    threading.Thread(target=_prepare, name="prepare", daemon=True).start()
    cli.main(prog_name="kvitals-web")


def _prepare() -> None:
    """What the first page takes longest for."""
    from ui.web import warm

    warm.up()


if __name__ == "__main__":
    main()
