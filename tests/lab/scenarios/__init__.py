"""One situation a file: its engines, its load, and what there is to find."""
