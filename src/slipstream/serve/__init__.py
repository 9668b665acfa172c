"""The server: OpenAI-compatible, several requests at once, nothing lost."""
