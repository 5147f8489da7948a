"""The protocol between clients and members: commands, results, requests and responses, their encoding and validation.

This package has no state, and does not depend on connections, the client or the server. `store` carries out the
commands.
"""
