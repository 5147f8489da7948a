"""A data folder as a whole: creating it, opening it under a lock, its metadata, and inspecting it without a lock."""
