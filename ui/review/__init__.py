"""A review as documents: one page, Markdown, JSON, tables. What they say is computed in `kvitals.diagnoser.review`."""
