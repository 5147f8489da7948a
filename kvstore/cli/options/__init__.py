"""Options that several commands of `hwm` share, and that need no parameter of the command."""
