"""The web page: renders the triage document that an agent's API gives, and computes nothing."""
