"""The command `hwm`: one file per group of commands, and what they share."""
