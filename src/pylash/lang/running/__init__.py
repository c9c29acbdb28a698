"""What compiled programs run on: values, builtins, bounds and effects."""
