"""Where a verdict comes from: a live engine, a recording, a history, a Prometheus."""
