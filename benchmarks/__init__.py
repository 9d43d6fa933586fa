"""Measurements of the budgets in docs/limits.md. Each is run with `python -m benchmarks.NAME`."""
