"""The server: connections of clients, the decision about each request, and the responses.

Health and metrics are in `monitoring`. The bounds on the resources of clients are in `resources`. The member that runs
the server is in `member`.
"""
