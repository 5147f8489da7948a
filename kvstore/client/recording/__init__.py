"""Recording of what a client saw: the methods of a recorder (`recorder`), and the calls that are recorded
(`recorded_calls`).
"""
