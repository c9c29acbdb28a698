"""Effect hosts: inline, which records nothing, and the journal of a SQL store."""
