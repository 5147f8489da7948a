"""The write-ahead log: frames, segments, the state that they add up to, and recovery after a crash.

Here belongs code that knows the bytes of the log. How operations are carried out belongs to `files`; the path of the
log's folder, to `storage.layout`.
"""
