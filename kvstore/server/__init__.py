"""The server: connections of clients, the decision about each request, and the responses.

Health and metrics belong to `monitoring`, the limits of what clients may use to `resources`, and the member around the
server to `member`.
"""
