"""TLS for the sockets of a member and of a client: encryption, certificates, and the rules about which side must show a
certificate.

`TlsSession` (session.py) does no I/O; `TlsStream` (stream.py) runs it on a socket. The other files load certificates,
check the identity of peers, and limit how many handshakes run at a time.
"""
