"""The protocol between members: messages, the hello, and their bytes.

`raft.core` contains the rules by which a member accepts a message."""
