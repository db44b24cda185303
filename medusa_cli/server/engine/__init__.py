"""The model behind the server."""
