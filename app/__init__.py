"""The application: agent and diagnoser joined, and what people are told of it. It renders nothing."""
