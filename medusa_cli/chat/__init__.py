"""`medusa chat`: the conversation, the loop and its commands, and the terminal around them."""
