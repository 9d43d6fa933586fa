"""How findings reach people: the terminal, the web page and the review as a document."""
