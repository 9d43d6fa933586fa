"""The Model Context Protocol server: the typed documents in short, as tools that read. It computes nothing."""
