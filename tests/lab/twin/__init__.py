"""Changes of a real vLLM's settings, predicted by its twin before they are made."""
