"""From options and a model to an engine that answers."""
