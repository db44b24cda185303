"""Tunes the layer for further tokens (MTP) that a model brings along."""
