"""Chooses the draft tree by measurement: what a step costs here, what it brings, and what real decoding says."""
