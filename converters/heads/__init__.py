"""Files of draft heads: their schema, the writer, checkpoints that become them."""
