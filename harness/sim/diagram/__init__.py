"""One run drawn as a space-time diagram."""
