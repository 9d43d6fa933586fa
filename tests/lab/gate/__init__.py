"""`kvitals gate` on a real vLLM: recorded incidents played against a fresh engine of the same configuration."""
