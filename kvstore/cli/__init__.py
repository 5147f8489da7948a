"""The command `hwm`: one module for each group of commands, and modules that they share."""
