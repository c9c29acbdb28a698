"""The pure half of agents: messages, the turn machine, budgets, and the port of models."""
