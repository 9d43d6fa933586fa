"""What the agent keeps in its history beside the series, and what it says of it."""
