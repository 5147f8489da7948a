"""The checks of a start that need neither the data folder nor a port.

A start makes them first, so a refused start leaves no new folder behind. `hwm serve --check-config` makes the same
checks, and starts nothing.
"""

from __future__ import annotations

from kvstore.client.dial import dialer_of
from kvstore.etcd import EtcdNotInstalled
from kvstore.member.certificates import MemberCertificates
from kvstore.member.config import MemberConfig
from kvstore.member.listeners import check_reach
from raft import InvalidConfiguration


def check_start(config: MemberConfig) -> None:
    """Check the member list, the reach of the ports and the certificate files of a member, without side effects.

    Raises ReachableByOthers, InvalidConfiguration, NotAMember, EtcdNotInstalled, UnusableCertificates.
    """
    configuration = config.configuration
    own = config.own
    check_reach(config, own)
    if config.etcd:
        _check_etcd_is_installed()
        if configuration is not None and len(configuration.members) > 1:
            check_way_to_others(config)
        dialer_of(None if config.tls is None else config.tls.client)
    named = "" if config.named is None else config.named.name
    MemberCertificates(config.node_id or (own.node_id if own else named), config.tls, etcd=config.etcd)


def check_way_to_others(config: MemberConfig) -> None:
    """Raise InvalidConfiguration if this member serves etcd's clients, and cannot reach the client ports of others."""
    tls = config.tls
    if tls is not None and tls.cert is not None and tls.client is None:
        raise InvalidConfiguration(
            "with TLS, a member that serves etcd's clients reaches the client ports of the others: it needs --ca, and "
            "--cert if they require certificates (`MemberTls.client`)"
        )


def _check_etcd_is_installed() -> None:
    """Raise EtcdNotInstalled if the libraries of the port for etcd's clients are missing."""
    try:
        import kvstore.etcd.port  # noqa: F401
    except ModuleNotFoundError as missing:
        library = (missing.name or "").partition(".")[0]
        raise EtcdNotInstalled("protobuf" if library == "google" else library) from missing
