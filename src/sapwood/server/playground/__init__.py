"""The page at `/` that shows trees while they grow, and its data."""
