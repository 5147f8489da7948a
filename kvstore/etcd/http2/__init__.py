"""HTTP/2 for etcd's clients, without I/O: `connection` is the seam, and two implementations stand behind it.

`engine` is the usual implementation, `library` uses h2, and `choice` loads the one that is wanted. What both need is in
`output` and `floods`. gRPC, messages and sockets do not belong here.
"""
