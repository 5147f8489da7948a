"""etcd's snapshot file: `export` makes one from a saved snapshot of the store, `importing` reads one, and `to_store`
makes a store from one.

The file is a database of bbolt, which `bolt_writer` writes and `bolt_reader` reads, with a SHA-256 behind it. `rows`
encodes and decodes the rows of etcd's buckets. `bolt_layout` has the numbers of the format.
"""
