"""What was found, in words and in one structure, and what follows for all keys from what is known of each."""
