"""`sapwood serve`: the server for OpenAI, Anthropic and Ollama clients."""
