"""Checkpoints from elsewhere: safetensors, torch files, the Hub."""
