"""Speed of ways to decode, measured side by side: prompts, methods, worker processes, figures, reports."""
