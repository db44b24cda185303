"""`medusa bench ablate`: trees, sizes, acceptance rules and heads side by side, each next to plain decoding."""
