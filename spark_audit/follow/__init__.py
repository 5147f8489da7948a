"""An audit that goes on: what has come since the last one, and the state between two of them."""
