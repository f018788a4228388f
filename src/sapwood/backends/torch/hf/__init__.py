"""Any Hugging Face causal model, through its own code and a tree mask."""
