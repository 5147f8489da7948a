"""A member that serves: connections of clients, what is judged about a request, and the answers.

What a member says of itself to operators belongs to `monitoring`; what it may use, to `resources`.
"""
