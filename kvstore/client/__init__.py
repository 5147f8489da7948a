"""The client: a core without I/O that finds the leader and retries safely, the pump that drives it, and the calls."""
