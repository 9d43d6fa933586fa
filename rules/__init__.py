"""What is known about LLM serving, as data, and the typed loader that reads it."""
