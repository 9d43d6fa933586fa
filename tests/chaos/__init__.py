"""Attacks on the product as it runs."""
