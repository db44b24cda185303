"""Head training: prompts, generated text with hidden states, torch, held-out measurements. torch is imported lazily."""
