"""The write-ahead log: frames, segments, the logical state of the log, and recovery after a crash.

All code that depends on the byte format of the log is in this package. `storage.files` carries out the file operations,
and `storage.layout` knows the path of the log's folder.
"""
