"""GGUF files: headers, fingerprints, file types, rewriting."""
