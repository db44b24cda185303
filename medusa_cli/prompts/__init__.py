"""Texts to ask models: seeds of training text, prompt files, the benchmark's own set."""
