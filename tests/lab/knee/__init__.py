"""The operating point, proven: sweeps of a real engine over concurrency, by its clients and by the product.

    python -m tests.lab knee --out DIR          # sweeps that lie in DIR are not made anew

One sweep's history is what the product fits; what other sweeps' clients measured is what it is held to.
"""
