"""The speed of several ways to decode, measured side by side: prompts, methods, workers, figures, reports."""
