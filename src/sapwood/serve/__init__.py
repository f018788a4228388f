"""The server: many requests, one model, trees that share a budget."""
