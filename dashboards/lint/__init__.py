"""What is wrong with somebody's boards and alerts on LLM engines: read, parsed, checked, with the corrected query."""
