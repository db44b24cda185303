"""`medusa serve`: the interface of OpenAI over HTTP, a page to chat on, and the queue in front of the one model."""
