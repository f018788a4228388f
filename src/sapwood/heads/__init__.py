"""Networks of the trained drafters, and their files."""
