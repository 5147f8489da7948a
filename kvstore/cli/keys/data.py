"""`hwm put|get|del|cas|range|txn`: one operation each."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from kvstore.cli.common import (
    Data,
    ExitCode,
    Failure,
    client_options,
    print_json,
    print_table,
    read_stdin,
    run_with_client,
)
from kvstore.cli.output import say, show, show_bytes
from kvstore.protocol.commands import Append, CompareAndSet, Delete, DeleteRange, Get, Put, Range, prefix_range
from kvstore.protocol.messages import Consistency
from kvstore.protocol.read_modes import STALENESS_MS_MAX, asked_for
from kvstore.protocol.results import (
    Accepted,
    AddResult,
    AppendResult,
    CompareAndSetResult,
    DeleteRangeResult,
    DeleteResult,
    GetResult,
    KeyRecord,
    PutResult,
    RangeResult,
    Record,
    Result,
    TxnResult,
)
from kvstore.protocol.text import escape_controls, to_shown_text, to_text
from kvstore.protocol.transaction_json import InvalidDocument, parse_document, txn_of_document
from raft import Acknowledge

if TYPE_CHECKING:
    from kvstore.client.client import Client

KEY, VALUE = Data(), Data(stdin=True)
LEVELS = {level.name.lower().replace("_", "-"): level for level in Acknowledge}

consistency_options = click.option(
    "--consistency",
    type=click.Choice([consistency.word for consistency in Consistency]),
    default="linearizable",
    show_default=True,
    help="Which state the read may show. `lease`: the leader answers alone, if clocks can be trusted; `follower`: any "
    "member answers after it has asked the leader; `bounded`: any member answers that can prove --max-staleness-ms; "
    "`local`: what one member has applied so far.",
)
staleness_option = click.option(
    "--max-staleness-ms", type=click.IntRange(0, STALENESS_MS_MAX), help="How old the state of a bounded read may be."
)
member_option = click.option(
    "--member", metavar="NODE", help="Read from this member, given by its node id or its client address."
)


revision_option = click.option(
    "--revision", type=click.IntRange(min=0), default=0, metavar="N", help="Read the store at this older revision."
)


def read_options(consistency: str, max_staleness_ms: int | None) -> dict[str, Any]:
    """Return the read options as arguments of the client's methods. Raises Failure."""
    try:
        asked_for(consistency, max_staleness_ms)
    except ValueError as error:
        raise Failure(str(error), ExitCode.USAGE, "give --max-staleness-ms with --consistency bounded") from error
    return {"consistency": consistency, "max_staleness_ms": max_staleness_ms}


def record_json(record: Record | KeyRecord) -> dict[str, Any]:
    """Convert a record for JSON output."""
    shown: dict[str, Any] = {"key": record.key} if isinstance(record, KeyRecord) else {}
    return {
        **shown,
        "value": record.value,
        "create_revision": record.create_revision,
        "mod_revision": record.mod_revision,
        "version": record.version,
        **({"lease_id": record.lease_id} if record.lease_id else {}),
    }


def result_json(result: Result) -> dict[str, Any]:
    """Convert a result for JSON output."""
    match result:
        case GetResult():
            shown = record_json(result.record) if result.record else {}
            return {"op": "get", "found": result.record is not None, **shown}
        case DeleteResult():
            return {"op": "delete", "found": result.found}
        case DeleteRangeResult():
            removed = {"previous": [record_json(each) for each in result.previous]} if result.previous else {}
            return {"op": "delete_range", "count": result.count, **removed}
        case AppendResult():
            return {"op": "append", "key": result.key}
        case AddResult():
            return {"op": "add", "number": result.number}
        case RangeResult():
            items = [record_json(item) for item in result.items]
            return {"op": "range", "items": items, "more": result.more, "count": result.count}
        case CompareAndSetResult():
            shown = {} if result.succeeded else {"seen": record_json(result.record) if result.record else None}
            return {"op": "cas", "succeeded": result.succeeded, **shown}
        case TxnResult():
            return {
                "op": "txn",
                "succeeded": result.succeeded,
                "results": [result_json(each) for each in result.results],
            }
        case PutResult(previous=Record() as previous):
            return {"op": "put", "previous": record_json(previous)}
        case _:
            return {"op": "put"}


@click.command()
@click.argument("key", type=KEY)
@click.argument("value", type=VALUE)
@click.option("--lease", "lease_id", type=click.IntRange(min=1), metavar="ID", help="Attach the key to this lease.")
@click.option(
    "--acknowledge",
    type=click.Choice(list(LEVELS)),
    default="majority",
    show_default=True,
    help="When the command ends. `none`: at once, and the write may be lost; `leader`: when the leader alone has the "
    "write on its disk; `majority`: when a majority has it; `in-sync`: when all members in sync have it.",
)
@client_options
def put(
    key: bytes,
    value: bytes,
    lease_id: int | None,
    acknowledge: str,
    endpoints: str,
    deadline_seconds: float,
    as_json: bool,
) -> None:
    """Write VALUE at KEY. If VALUE is `-`, the value is read from standard input."""
    level = LEVELS[acknowledge]
    if level is not Acknowledge.MAJORITY:
        _put_at(level, key, value, lease_id, endpoints, deadline_seconds, as_json=as_json)
        return
    command = Put(key, value, lease_id or 0)
    answer = run_with_client(endpoints, deadline_seconds, lambda client: client.execute(command))
    if as_json:
        print_json({**result_json(answer.result), "revision": answer.revision, "node": answer.node_id})
    else:
        say(f"revision {answer.revision}")


def _put_at(
    level: Acknowledge,
    key: bytes,
    value: bytes,
    lease_id: int | None,
    endpoints: str,
    deadline_seconds: float,
    *,
    as_json: bool,
) -> None:
    """Carry out `put` at a level other than MAJORITY."""

    async def work(client: Client) -> PutResult | Accepted | None:
        return await client.put(key, value, lease=lease_id, acknowledge=level)

    found = run_with_client(endpoints, deadline_seconds, work)
    match found:
        case PutResult(revision=revision, acknowledged_by=acknowledged_by):
            about = {"revision": revision, "acknowledged_by": list(acknowledged_by)}
            words = f"revision {revision}, on the disks of {', '.join(acknowledged_by)}"
        case Accepted(index, term):
            about = {"index": index, "term": term}
            words = f"accepted at index {index} of term {term}, and on the leader's disk alone"
        case None:
            about, words = {}, "sent; no member has confirmed it"
    if as_json:
        print_json({"op": "put", **about})
    else:
        say(words)


@click.command()
@click.argument("prefix", type=KEY)
@click.argument("value", type=VALUE)
@click.option("--lease", "lease_id", type=click.IntRange(min=1), metavar="ID", help="Attach the key to this lease.")
@client_options
def append(
    prefix: bytes, value: bytes, lease_id: int | None, endpoints: str, deadline_seconds: float, as_json: bool
) -> None:
    """Write VALUE under a new key: PREFIX, and the revision of this write in 8 bytes. Print the key and the revision.

    If VALUE is `-`, the value is read from standard input. The keys of a prefix sort in the order of their writes.
    """
    command = Append(prefix, value, lease_id or 0)
    answer = run_with_client(endpoints, deadline_seconds, lambda client: client.execute(command))
    assert isinstance(answer.result, AppendResult), answer
    if as_json:
        print_json({**result_json(answer.result), "revision": answer.revision, "node": answer.node_id})
    else:
        print_table(["key", "revision"], [[to_shown_text(answer.result.key), answer.revision]])


@click.command()
@click.argument("key", type=KEY)
@click.option("--raw", is_flag=True, help="Print the value byte for byte, with no line end.")
@revision_option
@consistency_options
@staleness_option
@member_option
@client_options
def get(
    key: bytes,
    raw: bool,
    revision: int,
    consistency: str,
    max_staleness_ms: int | None,
    member: str | None,
    endpoints: str,
    deadline_seconds: float,
    as_json: bool,
) -> None:
    """Print the value at KEY; exit code 1 if the key does not exist.

    A value that is not text is printed as `base64:...`. On a terminal, text with control characters other than line
    ends and tabs is also printed as `base64:...`.
    """
    how = read_options(consistency, max_staleness_ms)
    answer = run_with_client(
        endpoints,
        deadline_seconds,
        lambda client: client.execute(Get(key, revision), member=member, **how),
    )
    assert isinstance(answer.result, GetResult)
    record = answer.result.record
    if as_json:
        about = {"revision": answer.revision, "consistency": answer.consistency, "node": answer.node_id}
        about |= {} if answer.age_ms is None else {"age_ms": answer.age_ms}
        print_json({**result_json(answer.result), **about})
    elif record is None:
        say(f"not found: {to_text(key)}")
    elif raw:
        show_bytes(record.value)
    else:
        _show_value(record.value)
    if record is None:
        sys.exit(ExitCode.NEGATIVE)


def _show_value(value: bytes) -> None:
    """Print one value. Line ends and tabs are printed unchanged, because stdout contains only this value.

    On a terminal, a value with other control characters is printed as `base64:…`, because a terminal would interpret
    them.
    """
    text = to_text(value)
    if sys.stdout.isatty() and escape_controls(text.translate(_HARMLESS)) != text.translate(_HARMLESS):
        text = to_shown_text(value)
        say("the value has control characters for the terminal; --raw prints it unchanged")
    show_bytes(text.encode() + b"\n")


_HARMLESS = str.maketrans("\n\t", "  ")


@click.command("del")
@click.argument("key", type=KEY, required=False)
@click.option("--prefix", type=KEY, metavar="TEXT", help="Remove all keys that begin with this, as one change.")
@client_options
def delete(key: bytes | None, prefix: bytes | None, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Remove KEY, or all keys with a prefix; exit code 1 if nothing was there."""
    if (key is None) == (prefix is None):
        raise click.UsageError("give a KEY, or --prefix")
    command = Delete(key) if key is not None else DeleteRange(*prefix_range(prefix or b""))
    answer = run_with_client(endpoints, deadline_seconds, lambda client: client.execute(command))
    result = answer.result
    assert isinstance(result, DeleteResult | DeleteRangeResult)
    count = result.count if isinstance(result, DeleteRangeResult) else int(result.found)
    if as_json:
        print_json({**result_json(result), "revision": answer.revision, "node": answer.node_id})
    elif not count:
        say(f"not found: {to_text(key if key is not None else prefix or b'')}")
    else:
        how_many = "" if key is not None else f" {count} keys"
        say(f"deleted{how_many} at revision {answer.revision}")
    if not count:
        sys.exit(ExitCode.NEGATIVE)


@click.command()
@click.argument("key", type=KEY)
@click.argument("value", type=VALUE)
@click.option("--expect", "expected", type=KEY, metavar="TEXT", help="Only if the key has this value.")
@click.option("--revision", "mod_revision", type=click.IntRange(min=0), help="Only if the key has this mod_revision.")
@click.option("--absent", is_flag=True, help="Only if the key does not exist.")
@client_options
def cas(
    key: bytes,
    value: bytes,
    expected: bytes | None,
    mod_revision: int | None,
    absent: bool,
    endpoints: str,
    deadline_seconds: float,
    as_json: bool,
) -> None:
    """Compare and set: write VALUE at KEY if a condition holds; exit code 1 if the condition does not hold."""
    if (expected is not None) + (mod_revision is not None) + absent != 1:
        raise click.UsageError("name one condition: --expect TEXT, --revision N or --absent")
    wanted = expected if expected is not None else (mod_revision or 0)
    answer = run_with_client(
        endpoints, deadline_seconds, lambda client: client.execute(CompareAndSet(key, value, wanted))
    )
    result = answer.result
    assert isinstance(result, CompareAndSetResult)
    if as_json:
        print_json({**result_json(result), "revision": answer.revision, "node": answer.node_id})
    elif result.succeeded:
        say(f"revision {answer.revision}")
    else:
        seen = f"it is {to_text(result.record.value)!r}" if result.record else "it is absent"
        shown = f" at mod_revision {result.record.mod_revision}" if result.record else ""
        say(f"not written: {seen}{shown}")
    if not result.succeeded:
        sys.exit(ExitCode.NEGATIVE)


@click.command("range")
@click.option("--prefix", type=KEY, metavar="TEXT", help="All keys that begin with this.")
@click.option("--from", "start", type=KEY, metavar="KEY", help="Begin with this key.")
@click.option("--to", "end", type=KEY, metavar="KEY", help="End before this key.")
@click.option("--limit", type=click.IntRange(min=0), default=0, help="At most this many keys; 0: all.")
@click.option("--reverse", is_flag=True, help="From the last key to the first.")
@click.option("--keys-only", is_flag=True, help="Print only the keys.")
@click.option("--count", "count_only", is_flag=True, help="Print only the number of keys.")
@revision_option
@consistency_options
@staleness_option
@client_options
def range_command(
    prefix: bytes | None,
    start: bytes | None,
    end: bytes | None,
    limit: int,
    reverse: bool,
    keys_only: bool,
    count_only: bool,
    revision: int,
    consistency: str,
    max_staleness_ms: int | None,
    endpoints: str,
    deadline_seconds: float,
    as_json: bool,
) -> None:
    """List keys and values, in byte order. Without options: all of them, page by page.

    Text with control characters (line ends and tabs, too) and bytes that are not text are printed as `base64:...`.
    """
    if prefix is not None and (start is not None or end is not None):
        raise click.UsageError("give --prefix, or --from and --to")
    start, end = prefix_range(prefix) if prefix is not None else (start or b"", end)
    request = Range(start, end, limit, reverse, keys_only, count_only, revision)

    how = read_options(consistency, max_staleness_ms)

    async def read(client: Any) -> RangeResult:
        if count_only:
            page: RangeResult = await client.range(request, **how)
            return page
        items: list[KeyRecord] = []
        last: RangeResult | None = None
        first_count = 0
        async for page in client.pages(request, at_revision=revision, **how):
            first_count = page.count if last is None else first_count
            items += page.items
            last = page
        assert last is not None
        return RangeResult(last.revision, tuple(items), last.more, first_count)

    result = run_with_client(endpoints, deadline_seconds, read)
    if as_json:
        print_json({**result_json(result), "revision": result.revision})
    elif count_only:
        show(result.count)
    elif keys_only:
        print_table(["key"], [[to_shown_text(item.key)] for item in result.items])
    else:
        print_table(
            ["key", "value"], [[to_shown_text(item.key), to_shown_text(item.value or b"")] for item in result.items]
        )


@click.command()
@click.argument("document", default="-")
@client_options
def txn(document: str, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Carry out a transaction, written as JSON (an argument, or `-`: standard input).

    \b
    {"compares": [{"key": "a", "op": "=", "target": "version", "value": 0}],
     "success":  [{"op": "put", "key": "a", "value": "1"}, {"op": "get", "key": "b"}],
     "failure":  [{"op": "range", "prefix": "a"}, {"op": "delete", "key": "b"}]}

    \b
    target: version, create_revision, mod_revision, lease, value      op: =, !=, <, >
    A comparison with "end" or "prefix" must hold for every key of the range.
    put: "lease_id", "previous", "keep_value", "keep_lease"; get, range: "revision"
    also: {"op": "delete_range", "prefix": "a", "previous": true}
          {"op": "append", "prefix": "log/", "value": "1"}
          {"op": "add", "key": "n", "delta": 1}
          {"op": "txn", "compares": [...], "success": [...], "failure": [...]}

    \b
    Exit code 1 if a comparison is false and the `failure` branch ran.
    """
    try:
        command = txn_of_document(parse_document(read_stdin() if document == "-" else document))
    except InvalidDocument as error:
        is_name = document != "-" and document.lstrip()[:1] not in ("{", "[")
        hint = f"to read a file: hwm txn - < {document}" if is_name else "see `hwm txn --help`"
        raise Failure(f"the transaction cannot be read: {error}", ExitCode.USAGE, hint) from error
    answer = run_with_client(endpoints, deadline_seconds, lambda client: client.execute(command))
    result = answer.result
    assert isinstance(result, TxnResult)
    shown = {**result_json(result), "revision": answer.revision, "node": answer.node_id}
    if as_json or not sys.stdout.isatty():
        print_json(shown)
    else:
        say(f"{'success' if result.succeeded else 'failure'} branch, revision {answer.revision}")
        for each in shown["results"]:
            print_json(each)
    if not result.succeeded:
        sys.exit(ExitCode.NEGATIVE)
