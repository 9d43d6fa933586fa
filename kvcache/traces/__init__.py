"""Trace files of other tools, read as accesses (docs/inputs.md lists the formats)."""
