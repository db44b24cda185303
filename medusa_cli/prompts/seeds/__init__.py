"""Seeds for self-written training text."""
