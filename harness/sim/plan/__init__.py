"""The plan that a seed stands for: its data, how it is drawn, its profiles, and its file."""
