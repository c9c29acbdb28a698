"""Other people's agents, made durable: one module for each library."""
