"""What the running agent does beside its cycles."""
