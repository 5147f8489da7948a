"""The protocol between clients and members: commands, results, requests and responses, their bytes, their validation.

This package holds no state. It does not depend on connections, the client or the server. The effects of commands are in
`store`.
"""
