"""Senses: each reads one thing of the world (`read`: I/O) and makes series of its records (`feed`: pure)."""
