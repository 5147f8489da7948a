"""The write-ahead log: frames, segments, the state that they add up to, and recovery after a crash.

Here belongs whatever knows the bytes of the log. How operations are carried out belongs to `files`; where the folder
of the log is, to `storage.layout`.
"""
