"""Makes the data folder of a member of a new cluster, or opens an existing folder and checks it against the
configuration.

The feature level at which a new cluster begins is part of its first state, so all founders must begin at the same
level. The cluster id is also derived from this level, so founders that begin at different levels refuse each other.

See docs/reference/specification.md#11-ids.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from kvstore.limits import FEATURE_LEVEL_MAX, FEATURE_LEVEL_MIN, StoreLimits
from kvstore.member.config import MemberConfig
from kvstore.store.map import KeyValueMap
from kvstore.store.sessions import Sessions
from kvstore.store.snapshot_codec import header_of
from raft import Configuration, Identity, InvalidConfiguration, Member, derive_cluster_id
from storage import (
    DataFolder,
    MemoryFolder,
    NotInitialized,
    WrongCluster,
    create_data_folder,
    create_memory_folder,
    open_data_folder,
)


class _FirstStart(NamedTuple):
    """What the folder of a member of a new cluster begins with."""

    identity: Identity
    configuration: Configuration
    machine_header: Mapping[str, Any]


def initialize_folder(config: MemberConfig) -> Identity:
    """Make the data folder of a member of a new cluster. Raises StorageError, InvalidConfiguration."""
    first = _first_start(config)
    create_data_folder(config.folder, **first._asdict())
    return first.identity


def _first_start(config: MemberConfig) -> _FirstStart:
    configuration = config.configuration
    node_id = config.node_id or "s1"
    token: str | bytes = config.cluster_token
    if configuration is None:
        configuration = Configuration.of([Member(node_id)])  # No addresses, because the member reports them.
        token = config.cluster_token or uuid.uuid4().bytes  # Stores of one member must not share a cluster id.
    elif config.node_id is None:
        raise InvalidConfiguration("a member of a cluster is started with its own node id")
    identity = Identity(
        cluster_id=_cluster_id(token, configuration, config.feature_level),
        group_id=0,
        node_id=node_id,
        incarnation_id=os.urandom(16),
    )
    first_state = header_of(KeyValueMap(), Sessions(), StoreLimits(), 0, config.feature_level)
    return _FirstStart(identity, configuration, first_state)


def open_or_bootstrap(config: MemberConfig) -> DataFolder | MemoryFolder:
    """Open the folder, which must belong to this cluster and node. With `bootstrap`, make the folder first if it
    contains no member. With `in_memory`, the folder is always new."""
    if config.in_memory:
        return create_memory_folder(**_first_start(config)._asdict())
    try:
        return _open(config)
    except NotInitialized:
        if not config.bootstrap:
            raise
    initialize_folder(config)
    return _open(config)


def _open(config: MemberConfig) -> DataFolder:
    """Open the folder. The cluster may have begun at any level, because the level of the configuration is only for new
    folders."""
    configuration, expected = config.configuration, None
    if configuration is not None:
        expected = _cluster_id(config.cluster_token, configuration, config.feature_level)
    try:
        return open_data_folder(config.folder, expect_cluster_id=expected, expect_node_id=config.node_id)
    except WrongCluster as error:
        levels = range(FEATURE_LEVEL_MIN, FEATURE_LEVEL_MAX + 1)
        if configuration is None or all(
            error.found != _cluster_id(config.cluster_token, configuration, level) for level in levels
        ):
            raise
        expected = error.found
    return open_data_folder(config.folder, expect_cluster_id=expected, expect_node_id=config.node_id)


def _cluster_id(token: str | bytes, configuration: Configuration, level: int) -> bytes:
    """Return the id of a cluster that begins at a feature level. A level above 1 is put before the token, with zero
    bytes. A token from a command line cannot contain zero bytes, so it cannot be mistaken for a level and a token."""
    raw = token.encode() if isinstance(token, str) else token
    return derive_cluster_id(raw if level == FEATURE_LEVEL_MIN else b"\0level %d\0" % level + raw, configuration)
