"""The command `hwm`: one module for each group of commands, and shared modules."""
