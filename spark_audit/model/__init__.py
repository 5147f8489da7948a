"""The sequential specifications against which histories are judged: that of one key, and that of the whole store."""
