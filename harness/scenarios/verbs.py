"""The verbs of scenarios. Each verb is one function; the first line of its docstring is its help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.core_host.disk import Image
from harness.core_host.message_names import HeldMessage
from harness.core_host.node_host import NodeHost
from harness.scenarios.cluster_stage import ClusterStage, StagedWrite, image, milliseconds
from harness.scenarios.language import LEVELS, Step
from kvstore import has_too_few_in_sync
from raft import NODE_ID_PATTERN, Acknowledge, Busy, NotLeader, RaftConfig, Role

Action = Callable[[Step, ClusterStage], None]
DURATION_MS_MAX = 600_000
"""The bound on simulated time per step, in ms: no scenario needs more than ten minutes."""


def make_stage(
    steps: tuple[Step, ...], level: Acknowledge = Acknowledge.MAJORITY
) -> tuple[ClusterStage, tuple[Step, ...]]:
    """Read the first line, `cluster`, and the lines `log`, `term` and `vote`, which describe the disks at the start.
    `level`: the level of writes without a level.

    Returns (the stage with all members started, the remaining steps). Raises BadScenario.
    """
    first = steps[0]
    if first.verb != "cluster":
        raise first.wrong(f"it begins with `{first.verb}`", "begin with a line like `cluster s1 s2 s3`")
    ids, config, has_nodes = _members_of(first)
    stage = ClusterStage(ids, config, has_nodes, level)
    terms, votes, logs = dict.fromkeys(ids, 0), dict[str, str](), dict[str, list[int]]()
    used = 1
    for step in steps[1:]:
        if step.verb == "log":
            logs[step.member(step.word(0, "a member"), stage)] = [step.number(word) for word in step.words[1:]]
        elif step.verb == "term":
            step.no_more_than(2)
            for member in step.members([step.word(0, "a member or `all`")], stage):
                terms[member] = step.number(step.word(1, "a term"))
        elif step.verb == "vote":
            step.no_more_than(2)
            votes[step.member(step.word(0, "a member"), stage)] = step.member(step.word(1, "a candidate"), stage)
        else:
            break
        used += 1
    images: dict[str, Image] = {node: image(logs.get(node, []), terms[node], votes.get(node)) for node in ids}
    for step in steps[1:used]:
        if step.verb == "log" and sorted(logs[step.words[0]]) != logs[step.words[0]]:
            raise step.wrong("terms in a log never go back", "write them in rising order")
    stage.begin(images)
    stage.collect()
    return stage, steps[used:]


def _members_of(step: Step) -> tuple[tuple[str, ...], RaftConfig, bool]:
    words, config, has_nodes = step.words, RaftConfig(), False
    if "with" in words:
        at = words.index("with")
        for option in words[at + 1 :]:
            if step.one_of(option, ("single-entries", "nodes"), "valid option of `cluster`") == "nodes":
                has_nodes = True
            else:
                config = replace(config, append_bytes_max=1)
        words = words[:at]
    for word in words:
        if not NODE_ID_PATTERN.fullmatch(word):
            raise step.wrong(f"`{word}` is not the name of a member", "use a-z, 0-9 and -")
    if not 1 <= len(set(words)) == len(words) <= 9:
        raise step.wrong(
            f"`{step.text}` does not name 1 to 9 different members", "write for example `cluster s1 s2 s3`"
        )
    return tuple(sorted(words)), config, has_nodes


def _living(step: Step, word: str, stage: ClusterStage) -> str:
    member = step.member(word, stage)
    if member in stage.down | stage.paused:
        state = "down" if member in stage.down else "paused"
        raise step.wrong(f"{member} is {state}", f"`{'restart' if state == 'down' else 'resume'} {member}` first")
    return member


def timeout(step: Step, stage: ClusterStage) -> None:
    """timeout MEMBER: the member's next timer fires now (its election time-out, or a leader's heartbeat)."""
    step.no_more_than(1)
    stage.time_out(_living(step, step.word(0, "a member"), stage))


def campaign(step: Step, stage: ClusterStage) -> None:
    """campaign MEMBER: the election time-out passes, and this member campaigns first. Only votes move. It may lose."""
    step.no_more_than(1)
    stage.campaign(_living(step, step.word(0, "a member"), stage))


def elect(step: Step, stage: ClusterStage) -> None:
    """elect MEMBER: like `campaign`, but the member must win."""
    campaign(step, stage)
    core = stage.members[step.words[0]].core
    if core.role is not Role.LEADER:
        refusals = [
            event for member in stage.members.values() for event in member.events if event.name == "vote_refused"
        ]
        why = "; ".join(dict.fromkeys(str(event.fields["reason"]) for event in refusals[-6:]))
        raise step.wrong(f"{core.node_id} was not elected: {why or 'no majority answered'}", "`campaign` lets it lose")


def settle(step: Step, stage: ClusterStage) -> None:
    """settle: disks sync, except slow disks, and messages are delivered until no message is left."""
    step.no_more_than(0)
    stage.settle()


def heartbeat(step: Step, stage: ClusterStage) -> None:
    """heartbeat MEMBER: the leader sends its next heartbeat; nothing is delivered."""
    step.no_more_than(1)
    member = _living(step, step.word(0, "a leader"), stage)
    if stage.members[member].core.role is not Role.LEADER:
        raise step.wrong(f"{member} does not lead", "only leaders have heartbeats; `timeout` fires an election timer")
    stage.members[member].tick(stage.members[member].now + stage.config.heartbeat_interval_ns)
    stage.collect()


def wait(step: Step, stage: ClusterStage) -> None:
    """wait MS: time passes and timers fire; nothing is delivered."""
    stage.pass_time(_duration(step), moving=False)


def run(step: Step, stage: ClusterStage) -> None:
    """run MS: time passes and timers fire; disks sync, except slow disks, and messages are delivered at once."""
    stage.settle()
    stage.pass_time(_duration(step), moving=True)


def _duration(step: Step) -> int:
    step.no_more_than(1)
    count = step.number(step.word(0, "milliseconds"))
    if not 1 <= count <= DURATION_MS_MAX:
        raise step.wrong(f"{count} ms is not from 1 to {DURATION_MS_MAX}", "all timers are below a second")
    return milliseconds(count)


def sync(step: Step, stage: ClusterStage) -> None:
    """sync MEMBER…: all writes of the member become durable, and its core is informed."""
    for member in step.members(step.words, stage):
        stage.members[_living(step, member, stage)].sync()
    stage.collect()


def slow(step: Step, stage: ClusterStage) -> None:
    """slow MEMBER…: from now on, the member's disk syncs only by `sync`."""
    stage.slow.update(step.members(step.words, stage))


def fast(step: Step, stage: ClusterStage) -> None:
    """fast MEMBER…: undo `slow`."""
    stage.slow.difference_update(step.members(step.words, stage))


def _matching(step: Step, words: tuple[str, ...], stage: ClusterStage) -> list[HeldMessage]:
    wanted = step.letters(words, stage)
    found = [letter for letter in stage.wire if wanted(letter)]
    if not found:
        present = "; ".join(str(letter) for letter in stage.wire) or "nothing"
        raise step.wrong(f"`{' '.join(words)}` matches no message", f"on the wire: {present}")
    return found


def deliver(step: Step, stage: ClusterStage) -> None:
    """deliver [all] LINK [KIND]: the oldest message on LINK (s1>s2, *>s2, …) arrives; with `all`, every message."""
    words = step.words[1:] if step.words[:1] == ("all",) else step.words
    found = _matching(step, words, stage)
    for letter in found if words is not step.words else found[:1]:
        if letter.to in stage.paused:
            raise step.wrong(f"{letter.to} is paused", f"`resume {letter.to}` first")
        stage.deliver(letter)


def drop(step: Step, stage: ClusterStage) -> None:
    """drop [all] LINK [KIND]: the oldest message on LINK is lost; with `all`, every message."""
    words = step.words[1:] if step.words[:1] == ("all",) else step.words
    found = _matching(step, words, stage)
    for letter in found if words is not step.words else found[:1]:
        stage.wire.remove(letter)


def keep(step: Step, stage: ClusterStage) -> None:
    """keep NAME LINK [KIND]: the oldest message on LINK leaves the wire; each `again NAME` delivers it."""
    letter = _matching(step, step.words[1:], stage)[0]
    stage.wire.remove(letter)
    stage.kept[step.word(0, "a name for it")] = letter


def again(step: Step, stage: ClusterStage) -> None:
    """again NAME: a copy of the message that was kept as NAME arrives."""
    step.no_more_than(1)
    letter = stage.kept[step.one_of(step.word(0, "the name of a kept message"), stage.kept, "kept message")]
    _living(step, letter.to, stage)
    stage.deliver(letter)


def cut(step: Step, stage: ClusterStage) -> None:
    """cut s1>s2 …: this link loses all messages, one way. cut MEMBER…: a partition of these members from all others."""
    if any(">" in word for word in step.words):
        for word in step.words:
            sender, _, to = word.partition(">")
            stage.cut.add((step.member(sender, stage), step.member(to, stage)))
    else:
        inside = set(step.members(step.words, stage))
        stage.cut |= {(a, b) for a in stage.ids for b in stage.ids if (a in inside) != (b in inside)}
    stage.wire = [letter for letter in stage.wire if (letter.sender, letter.to) not in stage.cut]


def heal(step: Step, stage: ClusterStage) -> None:
    """heal: all links work again."""
    step.no_more_than(0)
    stage.cut.clear()


def crash(step: Step, stage: ClusterStage) -> None:
    """crash MEMBER…: the member ends; its unsynced writes, and its messages on the wire, are lost."""
    for member in step.members(step.words, stage):
        if member in stage.down:
            raise step.wrong(f"{member} is down already", f"`restart {member}` first")
        stage.crash(member)


def restart(step: Step, stage: ClusterStage) -> None:
    """restart MEMBER…: the member starts again, with the synced content of its disk."""
    for member in step.members(step.words, stage):
        if member not in stage.down:
            raise step.wrong(f"{member} is up", f"`crash {member}` first")
        stage.restart(member)


def pause(step: Step, stage: ClusterStage) -> None:
    """pause MEMBER…: the member and its clock stop; messages to it wait."""
    stage.paused.update(_living(step, member, stage) for member in step.members(step.words, stage))


def resume(step: Step, stage: ClusterStage) -> None:
    """resume MEMBER…: undo `pause`."""
    for member in step.members(step.words, stage):
        if member not in stage.paused:
            raise step.wrong(f"{member} is not paused", f"`pause {member}` first")
        stage.paused.discard(member)


def propose(step: Step, stage: ClusterStage) -> None:
    """propose MEMBER WORD…: the leader appends one entry per WORD, each with one command; nothing is delivered."""
    member = _living(step, step.word(0, "a member"), stage)
    step.word(1, "a command")
    for word in step.words[1:]:
        try:
            stage.members[member].propose(word)
        except (NotLeader, Busy) as error:
            raise step.wrong(f"{member} takes no command: {error}", "`expect role` shows who leads") from error
    stage.collect()


def write(step: Step, stage: ClusterStage) -> None:
    """write MEMBER WORD… [as LEVEL]: clients send one write per WORD; the leader takes it, and syncs unless slow."""
    member = _living(step, step.word(0, "a member"), stage)
    words, level = step.words[1:], stage.level
    if "as" in words:
        at = words.index("as")
        step.no_more_than(at + 3)
        words, level = words[:at], LEVELS[step.one_of(step.word(at + 2, "a level"), LEVELS, "level")]
    if not words:
        raise step.wrong(f"`{step.text}` lacks a word", "write it behind the member")
    host = stage.members[member]
    if not isinstance(host, NodeHost):
        raise step.wrong("a lone core has no clients", "write `cluster … with nodes`, or `propose`")
    for word in words:
        if word in stage.writes:
            raise step.wrong(f"{word} is written already", "give each write another word")
        ticket, copies = 0, host.core.copies() if level is Acknowledge.IN_SYNC else None
        if copies is None or not has_too_few_in_sync(copies, stage.min_in_sync):
            try:
                ticket = host.propose(word, level)
            except (NotLeader, Busy) as error:
                raise step.wrong(f"{member} takes no write: {error}", "`expect role` shows who leads") from error
        stage.writes[word] = StagedWrite(host, ticket, level)
        if member not in stage.slow:
            host.sync()
    stage.collect()


def minimum(step: Step, stage: ClusterStage) -> None:
    """minimum COUNT: from now on, a leader refuses writes of level in-sync if fewer voters than COUNT are in sync."""
    step.no_more_than(1)
    stage.min_in_sync = step.number(step.word(0, "a number of voters"))


def show(step: Step, stage: ClusterStage) -> None:
    """show SENTENCE: a picture of all members is drawn under this sentence, if the run is drawn."""
    step.word(0, "a sentence")
    stage.collect()


def read(step: Step, stage: ClusterStage) -> None:
    """read MEMBER NAME: the leader gets a request for a linearizable read; `expect read NAME` expects its state."""
    step.no_more_than(2)
    member, name = _living(step, step.word(0, "a member"), stage), step.word(1, "a name for the read")
    if name in stage.reads:
        raise step.wrong(f"there is a read {name} already", "give it another name")
    ticket = len(stage.reads) + 1
    try:
        stage.members[member].read(ticket)
    except (NotLeader, Busy) as error:
        raise step.wrong(f"{member} takes no read: {error}", "`expect role` shows who leads") from error
    stage.reads[name] = (member, stage.lives[member], ticket)
    stage.collect()


ACTIONS: dict[str, Action] = {
    action.__name__: action
    for action in (
        timeout, campaign, elect, heartbeat, settle, wait, run, sync, slow, fast, deliver, drop, keep, again,
        cut, heal, crash, restart, pause, resume, propose, read, write, minimum, show,
    )
}  # fmt: skip
