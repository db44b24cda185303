"""Seeds of self-written training text."""
