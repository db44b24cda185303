"""`medusa serve`: OpenAI's interface over HTTP, a page to chat on, and the queue in front of the one model."""
