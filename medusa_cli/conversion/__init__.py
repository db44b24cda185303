"""The pipeline behind `medusa convert`, and the check that reads its result back."""
