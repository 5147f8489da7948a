"""The encoding of values: the CBOR profile, frames, and the payload of an entry that carries commands.

The package `protocol` defines the messages that these bytes encode.
"""
