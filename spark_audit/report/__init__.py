"""The output for people: the terminal, the page with its plots, and the file of keys."""
