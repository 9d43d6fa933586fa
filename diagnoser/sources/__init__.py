"""Where series can be read from beside a window in memory: servers that speak Prometheus' HTTP API."""
