"""The weekly review: what was paid for, what came of it, where it went, and what would change that."""
