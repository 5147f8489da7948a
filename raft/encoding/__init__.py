"""How values become bytes: the profile of CBOR, frames, and the payload of an entry that carries commands.

What the bytes of a *message* mean belongs to `protocol`.
"""
