"""Access control: users and roles as replicated state, the check of requests against this state, passwords and tokens.

The modules of this package do no I/O and read no clock. The commands that change users and roles are in
`kvstore.protocol.access_commands`.
"""
