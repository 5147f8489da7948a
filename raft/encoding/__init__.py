"""The encoding of values: the CBOR profile, frames, and the payload of an entry that carries commands.

The meaning of the bytes of a *message* belongs to `protocol`.
"""
