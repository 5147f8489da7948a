"""The plan of a seed: its data, the code that draws it, its profiles, and its file format."""
