"""The Anthropic API: messages translated to chats, and their responses back."""
