"""Rights that change at random while members die and leaders change. No write takes effect without the right to it.

A model that knows only users, rights and puts carries out the log of the cluster again. The model shares no code with
the store.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvstore.access.credentials import Credentials
from kvstore.errors import OperationFailed, OutcomeUnknown, PermissionDenied
from kvstore.protocol.access_commands import AuthDisable, AuthEnable, UserGrant, UserRevoke
from kvstore.protocol.commands import Command, CommandKind, Put, decode_payload
from kvstore.protocol.messages import command_request
from kvstore.server.access_guard import PasswordCheck
from kvstore.server.service import Service
from raft import EntryKind
from tests.kvstore.support.in_memory_cluster import Cluster, SimClient
from tests.kvstore.support.users import PASSWORDS, commands_to_enable

STEPS = 60


class Model:
    """Keeps track of the right to write, in the order of the log."""

    def __init__(self) -> None:
        self.is_on, self.has_right, self.revision = False, False, 1
        self.values: dict[bytes, bytes] = {}
        self.done: set[tuple[int, int]] = set()  # (session, request number)
        self.puts = self.outdated = 0

    def apply(self, item: tuple[Any, ...]) -> None:
        session, number, _, kind, *rest = item
        user = None
        if kind == CommandKind.JUDGED:
            revision, user, kind, *rest = rest
            if not self.is_on or revision != self.revision:
                self.outdated += 1
                return
        elif self.is_on:
            self.outdated += 1
            return
        if session and number:
            if (session, number) in self.done:
                return
            self.done.add((session, number))
        if kind == CommandKind.PUT:
            key, value = rest[:2]
            assert not self.is_on or user != "ada" or self.has_right, f"{value!r} was written without the right"
            self.values[key] = value
            self.puts += 1
        elif type(kind) is int and kind >= CommandKind.USER_ADD:
            self._change(kind, rest)

    def _change(self, kind: int, rest: list[Any]) -> None:
        if kind == CommandKind.USER_REVOKE and not self.has_right:
            return
        if (kind == CommandKind.AUTH_ENABLE and self.is_on) or (kind == CommandKind.AUTH_DISABLE and not self.is_on):
            return
        self.revision += 1
        if kind in (CommandKind.USER_GRANT, CommandKind.USER_REVOKE) and rest[0] == "ada":
            self.has_right = kind == CommandKind.USER_GRANT
        elif kind in (CommandKind.AUTH_ENABLE, CommandKind.AUTH_DISABLE):
            self.is_on = kind == CommandKind.AUTH_ENABLE


def play(folder: Path, seed: int) -> Model:
    """Change rights at random, write at random, and let the model carry out the log again."""
    random, cluster = Random(seed), Cluster(folder, 3)
    cluster.leader()
    root, ada = (cluster.client(credentials=Credentials(name, PASSWORDS[name])) for name in ("root", "ada"))
    for host in cluster.hosts.values():
        make_quick(host.service)
    for command in commands_to_enable():
        root.do(command)
    tickets: list[tuple[SimClient, int]] = []
    for step in range(STEPS):
        chosen = random.random()
        if chosen < 0.65:
            request = command_request(Put(b"app/%d" % random.randrange(5), b"%d" % step))
            tickets.append((ada, ada.submit(request, seconds=20)))
        elif chosen < 0.85:
            change: Command
            change = UserGrant("ada", "apps") if random.random() < 0.5 else UserRevoke("ada", "apps")
            tickets.append((root, root.submit(command_request(change), seconds=20)))
        elif chosen < 0.9:
            change = AuthDisable() if random.random() < 0.5 else AuthEnable(bytes(32))
            tickets.append((root, root.submit(command_request(change), seconds=20)))
        elif len(cluster.hosts) == 3:
            died = random.choice(sorted(cluster.hosts))
            cluster.kill(died)
            cluster.wait(random.random())
            cluster.start(died)
            make_quick(cluster.hosts[died].service)
        cluster.wait(random.choice((0, 0, 0, 0.002, 0.02)))
    for client, ticket in tickets:
        try:
            client.result(ticket, 25)
        except PermissionDenied:
            assert client is ada
        except (OperationFailed, OutcomeUnknown):
            pass
    cluster.wait(2)
    model = Model()
    leader = cluster.hosts[cluster.leader()]
    for entry in leader.node.read_log(1, 1 << 30):
        if entry.kind is EntryKind.COMMANDS:
            for item in decode_payload(entry.payload)[1][1:]:
                model.apply(item)
    machine = leader.machine
    assert (machine.access.is_enabled, machine.access.revision) == (model.is_on, model.revision)
    records = {key: machine.get(key).record for key in model.values}
    assert {key: record.value for key, record in records.items() if record is not None} == model.values
    assert len({host.machine.state_hash() for host in cluster.hosts.values()}) == 1
    for host in cluster.hosts.values():
        host.service.check()
        host.machine.check()
        host.kill()
    return model


def make_quick(service: Service) -> None:
    """Check passwords in no time, because these tests do not test the hash."""

    def check(check: PasswordCheck) -> None:
        check.is_right = check.password == PASSWORDS.get(check.user)
        service.password_checked(check)

    service.check_password = check


@pytest.mark.timeout(100)
def test_no_write_takes_effect_without_the_right_and_all_members_agree(tmp_path: Path) -> None:
    puts = outdated = 0
    for seed in range(12):
        model = play(tmp_path / str(seed), seed)
        puts, outdated = puts + model.puts, outdated + model.outdated
    assert puts > 100, "most writes are allowed"
    assert outdated > 5, "some commands are under way while rights change"
