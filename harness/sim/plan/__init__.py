"""What a seed means: the plan of a run, how it is drawn, its profiles, and its file."""
