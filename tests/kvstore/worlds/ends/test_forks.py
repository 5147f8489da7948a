"""A process forks inside a block of the client, in each world. The block belongs to the parent alone: the child leaves
it without an effect, and a new client of the child works."""

from __future__ import annotations

import os
from functools import cache

import pytest

from tests.kvstore.worlds.test_processes import program
from tests.kvstore.worlds.world import WORLDS, World

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
]

PROGRAM = """
    import os, sys
    from kvstore import WrongContext
    from kvstore.blocking import Client
    from tests.kvstore.worlds.world import WORLDS, settled
    address, name, key = sys.argv[1:]
    world = next(each for each in WORLDS if each.name == name)
    async def refused(use):
        try:
            await use()
        except WrongContext as error:
            print("refused" if "forked" in str(error) else error, flush=True)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    async def scenario():
        async with world.client([address]) as client:
            await client.put(key, "1")
{blocks}
    def ended(block, child):
        _, status = os.waitpid(child, 0)
        print(block, os.waitstatus_to_exitcode(status), flush=True)
    world.run(scenario)
"""

IN_THE_CLIENT = """
            {enter}
                {begin}
                child = os.fork()
                if child == 0:
                    await refused(lambda: {use})
                else:
                    ended("{block}", child)
                    {parent}
            if child == 0:
                with Client([address]) as own:
                    assert own.get(key).value == b"1"
                print("left", flush=True)
                os._exit(42)
"""

BLOCKS: dict[str, tuple[str, str, str, str]] = {
    "lease": (
        "async with client.lease(10) as lease:",
        "await client.put(key + 'leased', '1', lease=lease)",
        "settled(lease.check())",
        "await settled(lease.check()); assert (await client.get(key + 'leased')).value == b'1'",
    ),
    "lock": (
        "async with client.lock(key) as lock:",
        "await settled(lock.check())",
        "settled(lock.check())",
        "await lock.guarded().put(key + 'guarded', '1').commit()",
    ),
    "guarded": (
        "async with client.lock(key) as lock:",
        "pass",
        "lock.guarded().put(key, '2').commit()",
        "await lock.guarded().put(key + 'guarded', '1').commit()",
    ),
    "leadership": (
        "async with client.election(key) as election:",
        "leadership = await election.campaign('me')",
        "settled(leadership.check())",
        "await settled(leadership.check())",
    ),
    "proclaim": (
        "async with client.election(key) as election:",
        "await election.campaign('me')",
        "election.proclaim('child')",
        "await election.proclaim('parent')",
    ),
    "consumer": (
        "async with client.consume(key, group='forks-' + name) as consumer:",
        "await client.put(key + '1', '1')",
        "anext(consumer)",
        "assert (await anext(consumer)).key == (key + '1').encode()",
    ),
    "watch": (
        "async with client.watch(prefix=key) as watch:",
        "await client.put(key + '1', '1')",
        "anext(watch)",
        "assert (await anext(watch)).key == (key + '1').encode()",
    ),
    "call": (
        "if True:",
        "pass",
        "client.put(key, '2')",
        "await client.put(key, '1')",
    ),
    "bulk": (
        "if True:",
        "pass",
        "client.put_many({key: '2'})",
        "await client.put_many({key: '1'})",
    ),
}
"""For each block: its beginning, what the parent does before the fork, what the child must not do, and what the parent
does in the block after the child has left it."""


@cache
def outcomes_in(world: World, member_address: str, key: str) -> tuple[int, str, str]:
    """Run one program, which forks a child in each block."""
    blocks = [
        IN_THE_CLIENT.format(block=block, enter=enter, begin=begin, use=use, parent=parent)
        for block, (enter, begin, use, parent) in BLOCKS.items()
    ]
    return program(PROGRAM.format(blocks="".join(blocks)), member_address, world.name, key)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
@pytest.mark.parametrize("block", BLOCKS)
def test_a_child_leaves_the_block_of_its_parent_without_an_effect(
    world: World, member_address: str, block: str
) -> None:
    """The child is refused any use of the block, and makes a client of its own. The parent goes on in its block."""
    code, out, errors = outcomes_in(world, member_address, f"forks-in-{world.name}/")

    assert (code, errors) == (0, "")
    assert f"refused\nleft\n{block} 42\n" in out
