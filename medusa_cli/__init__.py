"""medusa: run any llama.cpp model faster by letting it draft its own next tokens."""

__version__ = "0.1.0"
