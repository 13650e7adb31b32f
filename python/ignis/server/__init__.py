"""The HTTP surface: OpenAI's routes over one engine. Knows no page, no byte of KV, no weight."""
