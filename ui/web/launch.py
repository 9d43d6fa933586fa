"""Streamlit's command line, which asks nobody outside for this machine's address, with what pages need read in before
somebody comes."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import time

from kvitals.app.page_settings import read

WHOLE = ("pandas", "pyarrow", "altair")
"""Read in before any page is drawn: Altair looks at Pandas through sys.modules, where another page's thread may just
be half way through importing it."""

END_SECONDS = 5.0
"""For the server to end by itself once its parent is gone."""


def main() -> None:
    """Serve. Streamlit would ask a host on the Internet for this machine's address at a request from elsewhere.

    Ctrl-C ends it without a word while it starts, which takes seconds; the server has its own way.
    """
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # whoever became this program blocked it
    from streamlit import net_util
    from streamlit.web import cli

    from kvitals.agent import garbage

    if read().ends_with_parent:
        threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    net_util.get_external_ip = lambda: None
    garbage.keep_short()  # a recording is hundreds of thousands of objects that stay
    with contextlib.suppress(ImportError):  # Streamlit before it had uvicorn
        from kvitals.ui.web.bounds import bound_connections, bound_uploads
        from kvitals.ui.web.sessions import keep_few_sessions

        bound_connections()
        bound_uploads()
        keep_few_sessions()
    imported = threading.Event()
    threading.Thread(target=_prepare, args=(imported,), name="prepare", daemon=True).start()
    for module in WHOLE:
        importlib.import_module(module)
    imported.set()
    cli.main(prog_name="kvitals-web")


def _end_with_parent() -> None:
    """Wait until the pipe from the parent closes, which the kernel does however the parent ends; then end."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_SECONDS)
    os._exit(1)


def _prepare(imported: threading.Event) -> None:
    """What the first page takes longest for: the recording first, which goes on by itself."""
    from kvitals.ui.web import startup

    startup.source()
    imported.wait()
    startup.pages()


if __name__ == "__main__":
    main()
