"""Measurements of the budgets in docs/design.md. Each is run with `python -m benchmarks.NAME`."""
