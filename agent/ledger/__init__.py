"""What engines' KV caches hold and for whom, from their KV events."""
