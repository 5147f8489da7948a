"""A recorded history: its files, rows, requests, operations and clocks. This package decides no property of it."""
