"""The files of tests that begin first."""

from __future__ import annotations

LONG = (
    "unit/top/test_top_screen.py",
    "cases/test_cases.py",
    "unit/load/test_gate.py",
    "captures/test_tight_objectives.py",
    "unit/cli/test_every_command_fits.py",
    "unit/agent/test_hostile_targets.py",
    "unit/prove/test_trial.py",
    "captures/test_every_surface.py",
    "unit/kv_events/test_sockets.py",
    "unit/exports/test_connections.py",
    "unit/cli/test_reload.py",
    "unit/diagnoser/test_engine_rows.py",
    "unit/web/test_page_process.py",
    "unit/web/test_web_bounds.py",
    "unit/twin/test_whatif_set.py",
)
"""The files below tests/ that take longest: they begin first, so that all workers end at the same time."""
