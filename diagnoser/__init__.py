"""Series in, findings out."""
