"""Texts that models are asked: seeds of training text, prompt files, the benchmark's own set."""
