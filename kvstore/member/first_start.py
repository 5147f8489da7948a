"""The start of a member by name: it opens its data folder if it has one; otherwise it joins a cluster if it finds one;
otherwise it may begin one.

The first start, every later start, and the start after the loss of the folder use the same command line. The reasons
why this is safe are in docs/adr/0058-a-name-is-not-an-id.md.
"""

from __future__ import annotations

import logging
import os
import uuid
from dataclasses import replace
from pathlib import Path

import trio

from kvstore.errors import StoreError
from kvstore.member.config import MemberConfig
from kvstore.member.folder import initialize_folder
from kvstore.member.joining import make_joining_folder
from kvstore.member.named import NamedConfig, Waiting
from kvstore.member.survey import Begin, Found, Join, decide, survey
from kvstore.member.waiting_room import WaitingRoom, open_waiting_room
from raft import SUFFIX_BYTES, id_with_name, name_of
from storage import DataFolder, NotInitialized, WrongNode, open_data_folder

logger = logging.getLogger("kvstore.first_start")

QUIET_SECONDS = 5.0
"""A member begins a cluster only after it has found no cluster for this time. The time is needed because resolvers
remember for some seconds that a name did not exist."""

LOOK_SECONDS = 0.5
"""The pause between two surveys of the other names."""

TELL_SECONDS = 30.0
"""How often a member without data logs what it waits for, if the reason stays the same."""


async def open_or_start(config: MemberConfig, named: NamedConfig) -> DataFolder:
    """Open the folder of a named member. If the folder contains no member, wait until this member can join a cluster or
    begin one, and then make the folder.

    Raises StorageError, the errors of `open_waiting_room`, and UnusableCertificates.
    """
    try:
        return _open(config.folder, named)
    except NotInitialized:
        pass
    async with open_waiting_room(config, named.member(named.name)) as room:
        await _make_folder(config, named, room)
    return _open(config.folder, named)


def _open(folder: Path, named: NamedConfig) -> DataFolder:
    opened = open_data_folder(folder, expect_cluster_id=named.cluster_id or None)
    found = opened.identity.node_id
    if name_of(found) != named.name:
        opened.close()
        raise WrongNode(str(folder), found, named.name)
    return opened


async def _make_folder(config: MemberConfig, named: NamedConfig, room: WaitingRoom) -> None:
    quiet_since, told, told_at = None, "", 0.0
    while True:
        found = await survey(named)
        decision = decide(named, found)
        now = trio.current_time()
        if isinstance(decision, Begin):
            quiet_since = now if quiet_since is None else quiet_since
            if now - quiet_since >= QUIET_SECONDS:
                _begin(config, named)
                return
            room.reason = f"it begins a cluster unless it finds one within {QUIET_SECONDS:g} s"
        else:
            quiet_since = None
            room.reason = decision.reason if isinstance(decision, Waiting) else await _join(config, named, decision)
            if not room.reason:
                return
            if room.reason != told or now - told_at >= TELL_SECONDS:
                told, told_at = room.reason, now
                _tell(named, room.reason, found)
        await trio.sleep(LOOK_SECONDS)


def _begin(config: MemberConfig, named: NamedConfig) -> None:
    """Make the folder of the first member of a new cluster. A random token makes the id of the cluster unique."""
    own = named.member(_new_id(named.name))
    founding = replace(
        config, named=None, node_id=own.node_id, members=(own,), cluster_token=uuid.uuid4().hex, bootstrap=True
    )
    identity = initialize_folder(founding)
    logger.warning("%s begins the new cluster %s", identity.node_id, identity.cluster_id.hex())


async def _join(config: MemberConfig, named: NamedConfig, decision: Join) -> str:
    """Make the folder of a new member of this cluster. Return the reason if that is not possible now, or an empty
    text."""
    joining = named.joining(_new_id(named.name), decision.cluster_id)
    try:
        await make_joining_folder(config.folder, joining)
    except StoreError as error:
        return f"it cannot join cluster {decision.cluster_id.hex()} yet: {error}" + (
            f"; {error.hint}" if error.hint else ""
        )
    logger.warning(
        "%s has no folder, and joins cluster %s as a new member", joining.own.node_id, decision.cluster_id.hex()
    )
    return ""


def _new_id(name: str) -> str:
    return id_with_name(name, os.urandom(SUFFIX_BYTES))


def _tell(named: NamedConfig, reason: str, found: list[Found]) -> None:
    places = "; ".join(map(str, found))
    words = f"{named.name} has no data, and waits: {reason}. Found: {places or 'no other name'}"
    told = {"node_id": named.name, "event": "waits_for_cluster", "fields": {"reason": reason}, "message": words}
    logger.warning("%(node_id)s: %(message)s", told)
