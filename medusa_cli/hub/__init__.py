"""Repositories of the Hugging Face Hub: what they hold, fetching it, and the copies in the shared cache."""
