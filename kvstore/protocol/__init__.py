"""The protocol between clients and members: commands, results, requests and responses, their bytes, their validation.

This package holds no state, and depends on no connection, client or server. The effects of commands are in `store`.
"""
