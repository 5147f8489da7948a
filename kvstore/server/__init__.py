"""The server: connections of clients, the decision about each request, and the responses.

Health and metrics are in `monitoring`, the bounds on the resources of clients in `resources`, and the member that runs
the server in `member`.
"""
