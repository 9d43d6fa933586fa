"""Time series and PromQL: the ground floor, which knows nothing of LLMs."""
