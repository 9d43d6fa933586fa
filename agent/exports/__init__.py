"""Exports: how series leave the agent. Text for Prometheus to scrape, and Prometheus' own HTTP API."""
