"""Checkpoints in, GGUF out: headers, fingerprints, sidecars and the single-file layout. Nothing here runs a model."""
