"""All keys together, in the order of revisions: the replay of the store, and the matching of unknown writes with free
revisions.
"""
