"""The clients of a recorded run: the operations that they draw, and how they carry them out."""
