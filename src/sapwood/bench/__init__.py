"""`sapwood bench`: recipes and other engines on the same prompts, and the report."""
