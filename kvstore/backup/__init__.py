"""Backups: a snapshot of the store, fetched from a member (`save`), and its file (`file`).

A new cluster is begun with such a file in `member.restore`.
"""
