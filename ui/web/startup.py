"""What is read in before somebody comes, so that the first page does not wait for it."""

from __future__ import annotations

import contextlib

from kvitals.app.page_settings import SettingsError
from kvitals.ui.web import source_registry
from kvitals.ui.web.failure import UnansweredError


def source() -> None:
    """Knowledge, and the recording that is shown first. What fails is said when it is asked for."""
    with contextlib.suppress(UnansweredError, SettingsError, OSError):
        source_registry.setup()
        if source_registry.first() == source_registry.RECORDING:
            source_registry.open_source(source_registry.RECORDING)


def pages() -> None:
    """What draws. Only once Pandas and Altair are there: see `launch.WHOLE`."""
    import altair as alt

    from kvitals.ui.web.charts import ROWS, spec
    from kvitals.ui.web.views import timeline, triage

    del timeline, triage
    spec(alt.Chart(ROWS).mark_line().encode(x="a:Q"), [])
