"""The protocol between members: messages, the hello, and their bytes.

Which messages a member accepts belongs to `core`."""
