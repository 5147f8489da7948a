"""The clients of a recorded run: the generation of their operations, and the code that carries the operations out."""
