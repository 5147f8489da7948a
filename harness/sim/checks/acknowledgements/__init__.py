"""Rules about acknowledgement levels: when a write is answered, which members the answer names, and its outcome."""
