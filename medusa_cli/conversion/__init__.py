"""The pipeline behind `medusa convert`, and what reads its result back."""
