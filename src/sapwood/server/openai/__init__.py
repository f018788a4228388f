"""The OpenAI API: chats, completions, responses and embeddings; request schema, prompts, tools."""
