"""The ledger, proven: what engines say of their blocks beside what a driver sent and was told.

    python -m tests.lab.ledger record healthy --out tests/captures/ledger
    python -m tests.lab.ledger frames vllm --out DIR       # what publishers send, byte by byte

A recording is NAME.kvcap, as `kvitals record` makes it, and NAME.truth.json beside it: each request with the chain of
its prompt's blocks, who sent it, and what the engine said of it in its answer. Prompts are tokens drawn at random.
"""
