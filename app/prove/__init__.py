"""A change that is tried on a running engine: who acts, what ends it at once, what it did, and how it goes back."""
