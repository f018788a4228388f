"""Any Hugging Face causal language model through PyTorch."""
