"""Networks of trained drafters, and their file formats."""
