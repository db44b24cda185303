"""Streams in torch: the base's top layers as a drafter (Speculative Streaming, 2402.11131)."""
