"""A data folder as a whole: making one, opening it under its lock, its metadata, and inspecting it from outside."""
