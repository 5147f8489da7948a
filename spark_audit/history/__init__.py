"""A recorded history: its rows and operations, requests and effects, clocks and paths. Nothing is decided here."""
