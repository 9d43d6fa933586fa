"""Faults of machines and networks around real processes: `make chaos`.

Each situation starts what it needs anew (engines that serve pages that go on, the agent, Prometheus, Alertmanager),
breaks one thing and demands that the others do not notice, that what broke is told with its reason, and that
everything is as before afterwards. What is promised is in docs/reliability.md.
"""
