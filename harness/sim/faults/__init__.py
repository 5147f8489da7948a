"""What goes wrong in a run, when, and how it is healed."""
