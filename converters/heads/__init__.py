"""Files of draft heads: their schema, the writer, and checkpoints that are turned into them."""
