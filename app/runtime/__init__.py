"""What the running agent does: cycles, its API, reloading, the search for targets."""
