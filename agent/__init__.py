"""Senses in, families out: the process that watches one node."""
