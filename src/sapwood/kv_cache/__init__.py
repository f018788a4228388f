"""KV cache blocks: allocation, sharing of prefixes, copy on write."""
