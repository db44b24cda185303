"""What an answer consists of: thinking, text, calls of tools. One reader for chat, server, page and Python."""
