"""The tap: a streaming reverse proxy before one engine or router that measures requests and changes nothing of them."""
