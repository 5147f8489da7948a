"""A recorded history: its files, rows, requests, operations and clocks. This package does not judge the history."""
