"""The protocol between clients and members: commands, results, requests and responses, their bytes, their validation.

This chapter holds no state and knows no connection, no client and no server. The effect of a command belongs to
`store`.
"""
