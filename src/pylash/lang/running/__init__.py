"""The runtime of compiled programs: values, builtins, bounds and effects."""
