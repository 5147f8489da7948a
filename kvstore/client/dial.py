"""Opens the connections of a client, with TLS if the client has certificates."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from kvstore.client.pump import Dialer, dial_tcp
from kvstore.protocol.addresses import ascii_form, parse_address
from kvstore.tls import Tls, UnusableCertificates

if TYPE_CHECKING:
    from raft.runtime import Credentials, TlsStream

logger = logging.getLogger("kvstore.tls")


def dialer_of(tls: Tls | None) -> Dialer:
    """Return the function that opens connections. Raises UnusableCertificates."""
    return dial_tcp if tls is None else TlsDialer(tls)


class CallerCertificates:
    """The certificates that a client presents when it connects. Raises UnusableCertificates."""

    def __init__(self, tls: Tls) -> None:
        # Loaded here, because a client without TLS does not need `raft.runtime`.
        from raft.runtime import PROTOCOL_CLIENT, UnusableTlsFiles, caller_credentials

        self._told = ""
        try:
            self._credentials = caller_credentials(tls.cert, tls.key, tls.ca, PROTOCOL_CLIENT)
        except UnusableTlsFiles as error:
            raise UnusableCertificates(str(error)) from error

    def present(self) -> Credentials:
        """The credentials for the next connection. If the certificate files have changed, they are read again."""
        from raft.runtime import UnusableTlsFiles

        try:
            self._credentials.reread_if_changed()
        except UnusableTlsFiles as error:
            if error.reason != self._told:
                self._told = error.reason
                logger.warning("%s. The former files are used until these can be", error)
        return self._credentials


class TlsDialer:
    """Opens connections with TLS. Raises UnusableCertificates."""

    def __init__(self, tls: Tls) -> None:
        self._certificates = CallerCertificates(tls)

    async def __call__(self, address: str) -> TlsStream:
        """Connect to `host:port`. The certificate of the member must name this host. Raises OSError, InvalidAddress and
        BrokenResourceError."""
        from raft.runtime import call

        credentials = self._certificates.present()
        stream = await dial_tcp(address)
        try:
            return await call(stream, credentials, server_name_of(address))
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise


def server_name_of(address: str) -> str:
    """The name or IP address that a certificate must contain, without the zone of an IPv6 address and without a dot at
    the end of a name. An internationalized name is converted to the ASCII form that trio looks up, because the
    conversion by `ssl` may give another name.

    >>> server_name_of("[fe80::1%eth0]:7101"), server_name_of("s1.example.org.:7101"), server_name_of("straße.de:7101")
    ('fe80::1', 's1.example.org', 'xn--strae-oqa.de')
    """
    return ascii_form(parse_address(address)[0].partition("%")[0]).removesuffix(".")
