"""The data folder of a member: made for a new cluster, or opened and checked against the configuration."""

from __future__ import annotations

import os
import uuid

from kvstore.member.config import MemberConfig
from kvstore.store.machine import initial_header
from raft import Configuration, Identity, InvalidConfiguration, Member, derive_cluster_id
from storage import DataFolder, NotInitialized, create_data_folder, open_data_folder


def initialize_folder(config: MemberConfig) -> Identity:
    """Make the data folder of a new member: its explicit first start. Raises StorageError, InvalidConfiguration."""
    configuration = config.configuration
    node_id = config.node_id or "s1"
    token: str | bytes = config.cluster_token
    if configuration is None:
        configuration = Configuration.of([Member(node_id)])  # Without addresses: it reports where it listens.
        token = config.cluster_token or uuid.uuid4().bytes  # No other store of one member may have this id.
    elif config.node_id is None:
        raise InvalidConfiguration("a member of a cluster is started with its own node id")
    identity = Identity(
        cluster_id=derive_cluster_id(token, configuration),
        group_id=0,
        node_id=node_id,
        incarnation_id=os.urandom(16),
    )
    create_data_folder(config.folder, identity=identity, configuration=configuration, machine_header=initial_header())
    return identity


def open_or_bootstrap(config: MemberConfig) -> DataFolder:
    """Open the folder, which must belong to this cluster and node. With `bootstrap`, make it first if necessary."""
    configuration = config.configuration
    expected = None if configuration is None else derive_cluster_id(config.cluster_token, configuration)
    try:
        return open_data_folder(config.folder, expect_cluster_id=expected, expect_node_id=config.node_id)
    except NotInitialized:
        if not config.bootstrap:
            raise
    initialize_folder(config)
    return open_data_folder(config.folder, expect_cluster_id=expected, expect_node_id=config.node_id)
