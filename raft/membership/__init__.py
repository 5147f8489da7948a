"""Who the members are: a configuration, the configurations of one log, and what a change makes of one.

How a leader carries a change out belongs to `core`.
"""
