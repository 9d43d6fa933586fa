"""Grafana boards, generated from the knowledge in `rules/` so that a changed signal changes the board."""
