"""Rules about acknowledgement levels: when a write is answered, with which members, and what became of it."""
