"""What is read in before somebody comes, so that the first page does not wait for it."""

from __future__ import annotations

import contextlib

import altair as alt

from ui.web import places
from ui.web.charts import values
from ui.web.failure import UnansweredError
from ui.web.settings import SettingsError


def up() -> None:
    """Knowledge, charts, and the recording that is shown first. What fails is said when it is asked for."""
    alt.Chart(values([])).mark_line().encode(x="a:Q").to_dict()
    with contextlib.suppress(UnansweredError, SettingsError, OSError):
        places.setup()
        if places.first() == places.RECORDING:
            places.open_source(places.RECORDING)
