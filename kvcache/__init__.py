"""Pure models of a prefix cache: what was looked up, and what other caches would have made of it."""
