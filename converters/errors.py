"""The only error that converters raise."""


class MedusaError(Exception):
    """Something the person can put right. The message is one line: what, where, what to do."""
