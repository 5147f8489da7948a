"""Makes the data folder of a member of a new cluster, or opens an existing folder and checks it by the
configuration."""

from __future__ import annotations

import os
import uuid

from kvstore.member.config import MemberConfig
from kvstore.store.machine import initial_header
from raft import Configuration, Identity, InvalidConfiguration, Member, derive_cluster_id
from storage import DataFolder, NotInitialized, create_data_folder, open_data_folder


def initialize_folder(config: MemberConfig) -> Identity:
    """Make the data folder of a member of a new cluster. Raises StorageError, InvalidConfiguration."""
    configuration = config.configuration
    node_id = config.node_id or "s1"
    token: str | bytes = config.cluster_token
    if configuration is None:
        configuration = Configuration.of([Member(node_id)])  # No addresses: the member reports where it listens.
        token = config.cluster_token or uuid.uuid4().bytes  # Stores of one member must not share a cluster id.
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
    """Open the folder, which must belong to this cluster and node. With `bootstrap`, make the folder first if it holds
    no member."""
    configuration = config.configuration
    expected = None if configuration is None else derive_cluster_id(config.cluster_token, configuration)
    try:
        return open_data_folder(config.folder, expect_cluster_id=expected, expect_node_id=config.node_id)
    except NotInitialized:
        if not config.bootstrap:
            raise
    initialize_folder(config)
    return open_data_folder(config.folder, expect_cluster_id=expected, expect_node_id=config.node_id)
