"""The systems that are compared, as processes."""
