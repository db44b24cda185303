"""Training text: written, filtered, stored, read again."""
