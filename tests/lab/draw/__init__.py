"""Incidents drawn at random, played on real engines; truth is what an intervention changes (decision 0018)."""
