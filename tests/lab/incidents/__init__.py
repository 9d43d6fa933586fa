"""Labelled incidents on real engines: induced, recorded, and held against what the product says of them."""
