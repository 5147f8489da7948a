"""The protocol between members: messages, the hello, and their bytes.

The rules by which a member accepts a message are in `raft.core`."""
