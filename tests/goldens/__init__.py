"""What pages mean to the engine maps, kept as text so that a change of a map shows what it changes."""
