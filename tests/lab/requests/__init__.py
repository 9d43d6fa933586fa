"""Requests, proven: what kvitals says of each one beside what its client saw.

    python -m tests.lab requests                       # all plays
    python -m tests.lab requests agreement tenants     # some
    python -m tests.lab requests --out DIR             # ... and record them

Each play has real engines with tracing on, the agent, `kvitals tap` in front, and clients that keep a ledger.
"""
