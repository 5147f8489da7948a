"""TLS for the sockets of a member and of a client: encryption, certificates, and who must show which certificate.

`TlsSession` (session.py) does no I/O; `TlsStream` (stream.py) runs it on a socket. Everything else decides with which
files, with which peer, and how many handshakes at a time.
"""
