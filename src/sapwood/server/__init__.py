"""`sapwood serve`: the OpenAI-compatible server."""
