"""Requests: what observers say of them, stitched into one record each, counted by tenant."""
