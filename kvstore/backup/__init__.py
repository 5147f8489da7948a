"""Backups: `save` fetches a snapshot of the store from a member, and `file` reads and writes the snapshot file.
`member.restore` begins a new cluster from a snapshot file. `key_transfer` exports and imports single keys, as the lines
of `key_lines`.
"""
