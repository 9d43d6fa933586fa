"""Fuzzing of what reads metrics pages: `python -m tests.fuzz parser|families --seconds 600`, or `make fuzz`."""
