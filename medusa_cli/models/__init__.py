"""Model references, and the files behind them."""
