"""`hwm top`: the picture at each width, and the command on a real terminal with real members."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kvstore.cli.cluster.picture import Look, messages_of, picture, rates_of, slowest_of
from kvstore.cli.common import ExitCode
from kvstore.errors import StoreError, Unauthenticated, Unavailable
from kvstore.protocol.status import MemberStatus, PeerView
from kvstore.server.status import status_of
from tests.kvstore.support.in_memory_cluster import Cluster
from tests.process.servers import hwm, running_cluster

FRAME_SECONDS_MAX = 60.0
TOO_LATE = Unavailable("127.0.0.1:7103: timed out")


def a_peer(node_id: str, match_index: int, state: str = "replicate", *, in_sync: bool = True) -> PeerView:
    return PeerView(
        node_id=node_id,
        state=state,
        match_index=match_index,
        next_index=match_index + 1,
        last_applied=match_index,
        recent_active=True,
        is_in_sync=in_sync,
        lag_ms=0 if in_sync else 4_200,
    )


@pytest.fixture
def leader(tmp_path: Path) -> MemberStatus:
    """The status of an idle leader."""
    host = Cluster(tmp_path, 1).hosts["s1"]
    found = status_of(host.node, host.machine)
    marks = dict.fromkeys(("last_applied", "commit_index", "durable_index", "last_index"), 1_000_000)
    return replace(found, role="leader", term=7, low_watermark=999_000, revision=5_000, **marks)  # type: ignore[arg-type]


def look(*found: MemberStatus, lost: Mapping[str, StoreError] | None = None, at_seconds: float = 0.0) -> Look:
    return Look(
        at_seconds=at_seconds,
        members={**{each.node_id: each for each in found}, **(lost or {})},
        round_trip_seconds={each.node_id: 0.0012 for each in found},
        read_seconds=0.0025,
    )


def shown(now: Look, before: Look | None = None, width: int = 80) -> list[str]:
    console = Console(width=width, highlight=False, force_terminal=False)
    with console.capture() as captured:
        console.print(picture(before, now, width))
    return captured.get().splitlines()


def a_cluster(leader: MemberStatus, at_seconds: float = 0.0) -> Look:
    led = replace(leader, peers=(a_peer("s2", 1_000_000), a_peer("s3", 999_000, in_sync=False)))
    follower = replace(leader, node_id="s2", role="follower", last_applied=999_990)
    return look(led, follower, lost={"s3": TOO_LATE}, at_seconds=at_seconds)


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(leader: MemberStatus, width: int) -> None:
    lines = shown(a_cluster(leader), width=width)

    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    assert [line.split()[:3] for line in lines if re.match(r"s\d  ", line)] == [
        ["s1", "leader", "7"],
        ["s2", "follower", "7"],
        ["s3", "no", "answer"],
    ]


def test_a_wider_terminal_has_more_columns(leader: MemberStatus) -> None:
    titles = {width: " ".join(shown(a_cluster(leader), width=width)[5:7]) for width in (80, 160)}

    for title in ("high-water", "behind", "answer"):
        assert title in titles[80]
    for title in ("low-water", "watches", "its disk", "connec-"):
        assert title not in titles[80]
        assert title in titles[160]


def test_a_long_node_id_is_folded_and_its_control_characters_are_escaped(leader: MemberStatus) -> None:
    lines = shown(look(replace(leader, node_id="\x1b[2J" + "n" * 100)))
    table = lines[lines.index("") + 1 :]

    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)
    assert "".join(table).count("n") >= 100
    assert "…" not in "".join(lines)


def test_the_id_of_a_member_with_a_name_has_one_line_in_80_columns(leader: MemberStatus) -> None:
    """A pod has such an id: its name and eight digits."""
    marks = dict.fromkeys(("last_applied", "commit_index", "durable_index", "last_index"), 100_000_000)
    ids = [f"hwm-{number}-3f9a1c20" for number in range(3)]
    peers = tuple(a_peer(node_id, 100_000_000) for node_id in ids[1:])
    led = replace(leader, node_id=ids[0], term=1_000, peers=peers, **marks)  # type: ignore[arg-type]
    followers = [replace(led, node_id=node_id, role="follower", peers=()) for node_id in ids[1:]]
    lines = shown(look(led, *followers), look(led, *followers, at_seconds=-1.0))

    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line.startswith("hwm-")] == ids
    assert "…" not in "".join(lines)


def test_rates_are_those_between_two_looks(leader: MemberStatus) -> None:
    before = look(leader, at_seconds=10.0)
    later = replace(leader, revision=6_000, commit_index=1_000_400, last_applied=1_000_200)
    rates = rates_of(before, look(later, at_seconds=12.0))

    assert (rates.revisions, rates.entries, rates.applied) == (500.0, 200.0, {"s1": 100.0})
    assert "changes 500/s  log entries 200/s  linearizable read 2.5 ms" in shown(look(later, at_seconds=12.0), before)


def test_there_is_no_rate_without_a_look_before_or_across_a_restored_store(leader: MemberStatus) -> None:
    now = look(leader, at_seconds=2.0)
    higher = look(replace(leader, revision=9_999, commit_index=2_000_000, last_applied=2_000_000))

    assert rates_of(None, now).revisions is None
    assert (rates_of(higher, now).revisions, rates_of(higher, now).applied) == (None, {})
    assert rates_of(look(lost={"s1": TOO_LATE}), now).entries is None


def test_what_is_held_back_is_said_with_who_holds_it_back(leader: MemberStatus) -> None:
    peers = (a_peer("s2", 1_000_000), a_peer("s3", 10, "snapshot", in_sync=False))
    led = replace(leader, is_disk_full=True, peers=peers, low_watermark_held_by=("s3",))
    words = messages_of(look(led, lost={"s3": TOO_LATE}))

    assert f"s3 does not answer: {TOO_LATE}" in words
    assert "s1: its disk is full: writes are refused and reads go on; make room on it" in words
    assert "s1: its low-water mark is 999000 of 1000000: held back by s3" in words
    assert "s1: not in sync with it, because they lag: s3 (by 4.2 s)" in words
    assert "s3: a snapshot is sent to it" in words
    assert slowest_of(look(led)) == "slowest: s3, 999,990 entries, 4.2 s behind s1"


def test_a_cluster_in_order_says_so(leader: MemberStatus) -> None:
    lines = shown(look(replace(leader, peers=(a_peer("s2", 1_000_000),))))

    assert lines[-1] == "nothing is held back"
    assert not [line for line in lines if line.startswith("slowest")]


def test_a_deposed_leader_is_not_taken_for_the_leader(leader: MemberStatus) -> None:
    newer = replace(leader, node_id="s2", role="candidate", term=8)

    assert look(leader, newer).leader is None
    assert "no leader" in shown(look(leader, newer))[0]
    assert "wait for an election" in messages_of(look(leader, newer))[0]
    elected = replace(newer, role="leader")
    assert look(leader, elected).leader is elected


def test_without_any_answer_the_picture_goes_on(leader: MemberStatus) -> None:
    lines = shown(replace(look(lost={"s1": TOO_LATE}), read_seconds=TOO_LATE), look(leader))

    assert lines[0] == "no member answers"
    assert "s1     no answer" in " ".join(lines)


def test_a_member_that_refuses_is_not_shown_as_one_that_does_not_answer(leader: MemberStatus) -> None:
    refused = Unauthenticated("missing")
    now = replace(look(lost={"s1": refused}), read_seconds=refused)
    lines = shown(now, look(leader), width=200)

    assert lines[0] == "no member shows its state"
    assert "s1     refused" in " ".join(lines)
    assert messages_of(now)[0] == f"s1 refuses: {refused}"


class Terminal:
    """A terminal on which a command runs. Each frame begins where the command moves to the upper left corner."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self.descriptor, self.process = descriptor, process
        self.seen = b""

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self.descriptor, keys)

    def frame(self, wanted: Callable[[list[str]], bool]) -> list[str]:
        """The next whole frame that `wanted` accepts, without colours."""
        self.seen = b""
        end = time.monotonic() + FRAME_SECONDS_MAX
        while (left := end - time.monotonic()) > 0:
            if not self._read(left):
                break
            for part in self.seen.split(b"\x1b[H")[1:-1]:  # The last frame may not be whole yet.
                lines = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", part.decode()).replace("\r", "").split("\n")
                if wanted(lines):
                    return lines
        raise AssertionError(f"no such frame: {self.seen[-4_000:]!r}")

    def rest(self) -> bytes:
        """All bytes that come until the command ends."""
        self.seen = b""
        while self._read(FRAME_SECONDS_MAX):
            pass
        return self.seen

    def _read(self, seconds: float) -> bool:
        if not select.select([self.descriptor], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.descriptor, 65_536)
        except OSError:  # EIO means that the command has closed the terminal.
            return False
        self.seen += data
        return bool(data)


@contextmanager
def top_on_a_terminal(endpoints: list[str], **environment: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    command = hwm("top", "--interval-seconds", "0.2", "--endpoints", ",".join(endpoints))
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**kept, "TERM": "xterm-256color", **environment},
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C and new sizes then become signals.
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def row_of(lines: list[str], node_id: str) -> str:
    return next((line for line in lines if line.startswith(f"{node_id} ")), "")


def test_the_picture_lives_follows_the_size_and_shows_a_member_that_died(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3) as cluster, top_on_a_terminal(cluster.endpoints) as terminal:
        lines = terminal.frame(lambda lines: all("leader" in row_of(lines, s) or "follower" in row_of(lines, s)
                                                 for s in ("s1", "s2", "s3")))  # fmt: skip
        assert max(map(len, lines)) <= 80
        assert b"\x1b[1;32m" in terminal.seen or b"\x1b[32m" in terminal.seen

        terminal.resize(160, 30)
        wide = terminal.frame(lambda lines: any("low-water" in line for line in lines))
        assert 80 < max(len(line.rstrip()) for line in wide) <= 160

        victim = next(node_id for node_id in cluster.servers if "follower" in row_of(wide, node_id))
        cluster.servers[victim].kill()
        dead = terminal.frame(lambda lines: "no answer" in row_of(lines, victim))
        assert any(line.startswith(f"{victim} does not answer: ") for line in dead)

        terminal.press(b"q")
        rest = terminal.rest()
        assert terminal.process.wait(FRAME_SECONDS_MAX) == 0
        assert rest.rstrip().endswith(b"\x1b[?1049l")  # The terminal shows its earlier contents again.


def test_without_colour_no_text_has_one_and_ctrl_c_ends_the_command(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1) as cluster, top_on_a_terminal(cluster.endpoints, NO_COLOR="1") as terminal:
        terminal.frame(lambda lines: "leader" in row_of(lines, "s1"))
        assert not re.search(rb"\x1b\[[\d;]*3[0-7]m", terminal.seen)
        terminal.press(b"\x03")
        rest = terminal.rest()
        assert (terminal.process.wait(FRAME_SECONDS_MAX), b"Traceback" in rest) == (0, False), rest
        assert rest.rstrip().endswith(b"\x1b[?1049l")


def test_elsewhere_pictures_are_plain_text_or_json(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1) as cluster:
        words = ("top", "--once", "--interval-seconds", "0.1", "--endpoints", cluster.endpoints[0])
        plain = subprocess.run(hwm(*words), capture_output=True, text=True, timeout=60, check=True)
        as_json = subprocess.run(hwm(*words, "--json"), capture_output=True, text=True, timeout=60, check=True)
    nobody = subprocess.run(
        hwm(*words, "--deadline", "0.3"), capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip

    assert "\x1b" not in plain.stdout
    assert plain.stdout.count("linearizable read") == 1
    found = json.loads(as_json.stdout)
    assert found["members"][0]["role"] == "leader"
    assert found["members"][0]["round_trip_seconds"] > 0
    assert found["changes_per_second"] == 0
    assert (nobody.returncode, nobody.stdout) == (ExitCode.UNAVAILABLE, "")
