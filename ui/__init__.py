"""How findings reach people, and where agent and diagnoser are joined."""
