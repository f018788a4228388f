"""The Ollama API: chats and prompts translated to the OpenAI requests, and responses back."""
