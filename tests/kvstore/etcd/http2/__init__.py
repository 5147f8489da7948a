"""HTTP/2: the engine beside the library h2, which is its oracle."""
