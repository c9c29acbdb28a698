"""The pure half of durability: scopes, effects, waits, runs, and the ports stores implement."""
