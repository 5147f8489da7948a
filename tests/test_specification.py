"""Every number, name, field and default in the tables of docs/reference/specification.md is the same as in the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

from kvstore.errors import REFUSALS, Reason
from kvstore.limits import AdmissionLimits, StoreLimits
from kvstore.member.survey import NO_DATA
from kvstore.protocol.commands import CommandKind, Comparison, Target
from kvstore.protocol.messages import Code, Consistency, RequestKind
from raft.core.message_validation import LEADER_TIME_AHEAD_NS_MAX, TERM_AHEAD_MAX
from raft.errors import ChangeRefusal
from raft.node.peer_identity import PINS_MAX
from raft.protocol.codec import _DECODERS, APPEND_ENTRIES_MAX
from raft.protocol.hello import HelloRole
from raft.protocol.messages import Message
from raft.runtime.connection_log import HELLO_REFUSALS
from raft.types import EntryKind
from spark_audit.history.rows import FIELDS, OPS, OUTPUT, STATUSES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "specification.md"
TEXT = PAGE.read_text(encoding="utf-8")


def section(number: str) -> str:
    """The text below the heading with this number, up to the next heading."""
    match = re.search(rf"^###? {re.escape(number)} .*?\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert match, number
    return match[1]


def rows(number: str) -> list[list[str]]:
    """The cells of all table rows of a section, without the head rows."""
    found, is_head = list[list[str]](), True
    for line in section(number).splitlines():
        if not line.startswith("|"):
            is_head = True
        elif set(line) <= set("|- "):
            is_head = False
        elif not is_head:
            found.append([cell.strip() for cell in line.strip("|").split("|")])
    assert found, number
    return found


def numbered(number: str) -> dict[int, str]:
    """A dict of number → name, from the table whose first two columns have these heads."""
    return {int(row[0]): row[1].strip("`") for row in rows(number)}


def names(cell: str) -> list[str]:
    return re.findall(r"`([\w.]+)`", cell)


def test_entry_kinds() -> None:
    assert numbered("2.1") == {int(kind): kind.name.lower() for kind in EntryKind}


def test_roles_of_a_hello() -> None:
    assert [(int(role), role.name.lower()) for role in HelloRole] == [(1, "peer"), (2, "client")]
    assert "1 peer, 2 client" in section("7.4")


def test_refusals_of_a_hello() -> None:
    listed = {name for row in rows("7.5") for name in names(row[0])}

    assert listed >= HELLO_REFUSALS - {"other"}
    assert listed - HELLO_REFUSALS == {"busy", "protocol", "internal", NO_DATA}
    assert f"{PINS_MAX:,} pins" in section("1.3")


def test_peer_messages_and_their_items() -> None:
    """Each field of a message, except the term, is an item on the wire."""
    listed = {int(row[0]): (row[1], set(re.findall(r"[a-z_]+", row[2]))) for row in rows("7.6")}

    assert set(listed) == set(_DECODERS)
    assert {name for name, _ in listed.values()} == {message.__name__ for message in get_args(Message)}
    items = dict(listed.values())
    for message in get_args(Message):
        wanted = {field.name for field in fields(message)} - {"term"}
        assert wanted <= items[message.__name__], message


def test_bounds_of_peer_messages() -> None:
    assert f"at most {APPEND_ENTRIES_MAX:,} entries" in section("7.7")
    assert (TERM_AHEAD_MAX, LEADER_TIME_AHEAD_NS_MAX) == (2**32, 2**58)
    assert "2³² above" in section("7.7")
    assert "2⁵⁸ ns above" in section("7.7")


def test_requests_of_clients() -> None:
    assert numbered("7.10") == {int(kind): kind.name.lower() for kind in RequestKind}


def test_codes_of_responses() -> None:
    listed = {int(row[0]): row[1].replace(" ", "_") for row in rows("7.11") if row[0].isdigit()}

    assert listed == {int(code): code.name.lower() for code in Code if code is not Code.OK}


def test_commands() -> None:
    listed = {int(row[0]): row[1].partition(":")[0] for row in rows("8.2")}

    assert listed == {int(kind): kind.name.lower() for kind in CommandKind}


def test_errors_of_the_store_and_reasons() -> None:
    listed = {int(row[0]): row[1].strip("`") for row in rows("8.3") if row[0].isdigit()}

    assert listed == {int(code): error.__name__ for code, error in REFUSALS.items()}
    assert {reason.value for reason in Reason} <= set(names(section("8.3")))


def test_comparisons() -> None:
    assert [int(row[0]) for row in rows("8.5")] == [int(target) for target in Target]
    assert [row[1].partition(" ")[0] for row in rows("8.5")] == [target.name.lower() for target in Target]
    signs = {Comparison.EQUAL: "=", Comparison.NOT_EQUAL: "≠", Comparison.LESS: "<", Comparison.GREATER: ">"}
    assert {int(row[3]): row[4] for row in rows("8.5") if row[3]} == {int(each): sign for each, sign in signs.items()}


def test_bounds_of_admission_and_replicated_limits() -> None:
    admission = {name: getattr(AdmissionLimits(), name) for name in AdmissionLimits.__dataclass_fields__}

    assert {names(row[0])[0]: int(row[1]) for row in rows("8.9")} == admission
    assert [(names(row[0])[0], int(row[1])) for row in rows("8.10")] == list(StoreLimits().to_map().items())


def test_consistencies() -> None:
    assert {int(row[0]): names(row[1])[0] for row in rows("8.11")} == {int(each): each.word for each in Consistency}


def test_reasons_against_a_change_of_members() -> None:
    assert {reason.value for reason in ChangeRefusal} <= set(names(section("9.8")))


def test_rows_of_a_history() -> None:
    """The audit shares no code with the store, so both must agree with the specification."""
    listed = {names(row[0])[0]: row for row in rows("10.3")}

    of_levels = [names(row[0])[0] for row in rows("10.11")]
    assert [*list(listed)[:-1], *of_levels] == [name for name, _ in FIELDS]
    assert list(listed)[-1] == "age_ms"
    assert set(re.findall(r"[a-z_]+", "".join(re.findall(r"`[^`]*`", listed["op"][3])))) == set(OPS)
    assert listed["status"][3].startswith(f"`{' '.join(STATUSES)}`")


def test_the_output_of_a_row() -> None:
    listed = {name for row in rows("10.6") for name in names(row[0])}

    assert listed == {name for name, _ in OUTPUT}
