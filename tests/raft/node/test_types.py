"""The class of log entries is written by hand, but still behaves as a frozen dataclass."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft import Entry, EntryKind


@dataclass(frozen=True, slots=True)
class Plain:
    """The slow twin."""

    index: int
    term: int
    kind: EntryKind
    payload: bytes


parts = st.tuples(st.integers(1, 3), st.integers(1, 2), st.sampled_from(EntryKind), st.binary(max_size=2))


@given(one=parts, other=parts)
def test_an_entry_is_equal_hashed_shown_and_copied_as_a_plain_dataclass_is(
    one: tuple[int, int, EntryKind, bytes], other: tuple[int, int, EntryKind, bytes]
) -> None:
    entry, plain = Entry(*one), Plain(*one)

    assert (entry == Entry(*other)) == (plain == Plain(*other))
    assert hash(entry) == hash(plain)
    assert repr(entry) == repr(plain).replace("Plain", "Entry")
    assert pickle.loads(pickle.dumps(entry)) == entry
    assert replace(entry, term=9) == Entry(one[0], 9, *one[2:])
    index, term, kind, payload = one
    assert Entry(payload=payload, kind=kind, term=term, index=index) == entry


@pytest.mark.parametrize("name", ["index", "term", "kind", "payload"])
def test_nothing_in_an_entry_can_be_changed(name: str) -> None:
    entry = Entry(1, 2, EntryKind.NO_OP, b"x")
    with pytest.raises(FrozenInstanceError):
        setattr(entry, name, getattr(entry, name))
    with pytest.raises(FrozenInstanceError):
        delattr(entry, name)
    assert entry == Entry(1, 2, EntryKind.NO_OP, b"x")
