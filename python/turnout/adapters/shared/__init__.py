"""What an actor and its clients share, without Ray: messages, and the router that answers them."""
