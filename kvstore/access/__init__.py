"""Who may do what: users and roles as replicated state, the judgement of requests by it, passwords and tokens.

No I/O and no clock belong here. The commands that change users and roles are in `kvstore.protocol.access_commands`.
"""
