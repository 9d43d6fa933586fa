"""A week of the lab: recorded days of real engines, one after the other, judged and kept as an agent does."""
