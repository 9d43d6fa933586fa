"""Helpful, useless and harmful changes of a real vLLM under load, drawn at random: what `kvitals prove` answers, and
how soon it goes back."""
