"""Boards and alerts, generated from the rules."""
