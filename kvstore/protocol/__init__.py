"""What clients and members say to each other: commands, results, requests and answers, their bytes, their validation.

Nothing here holds state or knows of a connection. What a command *does* belongs to `store`.
"""
