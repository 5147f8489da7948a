"""The sequential specifications against which histories are judged: one for a single key, and one for the whole
store."""
