"""Methods side by side on one loaded target: prompts, paired measurements, and the report made of them."""
