"""A twin of one engine: its step time, fitted from its counters, under a simulation of its scheduler."""
