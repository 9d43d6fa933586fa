"""The boards: one module each, with `build`."""
