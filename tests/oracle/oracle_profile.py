"""How many generated expressions are asked, and that they are the same ones unless more are wanted."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
settings.register_profile(
    "oracle", max_examples=400, derandomize=True, deadline=None, suppress_health_check=_SLOW, database=None
)
settings.register_profile(
    "oracle-more",
    max_examples=int(os.environ.get("KVITALS_ORACLE_EXAMPLES", "0")) or 1,
    deadline=None,
    suppress_health_check=_SLOW,
    print_blob=True,
)


def oracle_profile() -> settings:
    """The settings of generated tests; a profile is not loaded for all, since other tests may run with these."""
    return settings.get_profile("oracle-more" if "KVITALS_ORACLE_EXAMPLES" in os.environ else "oracle")
