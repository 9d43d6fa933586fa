"""History: what the windows held, kept on disk in one SQLite file, for a day in full and for weeks a minute at a time.

`intake` takes the new rows of windows, `store` writes them in a thread of its own, `reader` is a `SeriesSource` over
what was written, by the same or by another process, and `joined` puts a window and a history together without a seam.
How it is laid out on disk: `schema`.
"""
