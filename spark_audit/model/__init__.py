"""The sequential specification against which histories are judged: the register of one key, and the whole store."""
