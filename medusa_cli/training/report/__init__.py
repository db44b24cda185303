"""What a training run tells: live view, curves, records."""
