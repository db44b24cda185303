"""JSON schemas as grammars: what an answer may look like."""
