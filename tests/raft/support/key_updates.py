"""Records of TLS 1.3 that carry the message KeyUpdate (RFC 8446 §4.6.3, §7.2), which Python's `ssl` cannot send."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HASH_BYTES = 48
HANDSHAKE, DATA = 22, 23


class Forger:
    """Continues the sending side of a connection with TLS_AES_256_GCM_SHA384, on which no bytes were sent after the
    handshake. `key_log` is the file `keylog_filename` of the caller's context."""

    def __init__(self, key_log: Path) -> None:
        lines = [line.split() for line in key_log.read_text().splitlines()]
        (self._secret,) = [bytes.fromhex(line[2]) for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0"]
        self._number = 0

    def key_update(self, *, is_answer_wanted: bool = False) -> bytes:
        """The record of one KeyUpdate."""
        record = self._record(bytes([24, 0, 0, 1, is_answer_wanted]), HANDSHAKE)
        self._secret, self._number = self._expand(b"traffic upd", HASH_BYTES), 0
        return record

    def data(self, plain: bytes) -> bytes:
        """The record of some data."""
        return self._record(plain, DATA)

    def _record(self, plain: bytes, kind: int) -> bytes:
        nonce = (int.from_bytes(self._expand(b"iv", 12), "big") ^ self._number).to_bytes(12, "big")
        self._number += 1
        header = bytes([DATA, 3, 3]) + (len(plain) + 17).to_bytes(2, "big")
        return header + AESGCM(self._expand(b"key", 32)).encrypt(nonce, plain + bytes([kind]), header)

    def _expand(self, label: bytes, count: int) -> bytes:
        info = count.to_bytes(2, "big") + bytes([6 + len(label)]) + b"tls13 " + label + b"\0"
        return hmac.new(self._secret, info + b"\1", hashlib.sha384).digest()[:count]
