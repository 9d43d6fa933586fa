"""Not vLLM: holds the one operation that SGLang takes from there on a CPU."""
