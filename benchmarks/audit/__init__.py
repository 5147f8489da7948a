"""The speed of the audit: histories that are true by construction, and the time of each kernel and command on them."""
