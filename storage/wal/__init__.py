"""The write-ahead log: frames, segments, the logical state of the log, and recovery after a crash.

This package holds all code that knows the bytes of the log. Carrying out operations belongs to `files`, and the path of
the log's folder to `storage.layout`.
"""
