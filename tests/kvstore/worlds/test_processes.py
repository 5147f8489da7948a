"""Ctrl-C, a fork, and the end of the interpreter, in programs of their own."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest

import kvstore.blocking
from kvstore.blocking import Client

pytestmark = [pytest.mark.timeout(120)]

SECONDS_MAX = 30.0

BLOCKING = str(Path(kvstore.blocking.__file__).parent)

WAIT_SECONDS_MAX = 3.0
"""Less than the time to live of a lease that nobody revokes."""

LINES_MIN = 10
"""A call runs at least this many lines of `kvstore.blocking`."""


def program(source: str, *arguments: str, interrupt_at: str = "") -> tuple[int, str, str]:
    """Run a program; returns its exit code and what it wrote. `interrupt_at`: the line after which it gets SIGINT."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(source), *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None
        read = ""
        try:
            if interrupt_at:
                while interrupt_at not in read:
                    line = process.stdout.readline()
                    assert line, (read, process.stderr and process.stderr.read())
                    read += line
                process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=SECONDS_MAX)
        except BaseException:
            process.kill()
            raise
    return process.returncode, read + out, errors


def test_ctrl_c_in_a_call_of_a_thread_leaves_its_outcome_unknown_and_closes_the_client(member_address: str) -> None:
    source = """
        import sys, threading
        from kvstore.blocking import Client
        with Client([sys.argv[1]]) as client:
            client.put("key", "1")
            try:
                with client.watch("nothing") as watch:
                    print("waiting", flush=True)
                    next(watch)
            except KeyboardInterrupt:
                print("interrupted", client.get("key").record.value, flush=True)
        print([each.name for each in threading.enumerate()])
    """
    code, out, errors = program(source, member_address, interrupt_at="waiting")

    assert (code, errors) == (0, "")
    assert "interrupted b'1'" in out
    assert "['MainThread']" in out


def test_ctrl_c_in_a_put_of_a_thread_that_gets_no_answer() -> None:
    source = """
        import socket
        from kvstore.blocking import Client
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0)); silent.listen()
            with Client([f"127.0.0.1:{silent.getsockname()[1]}"], deadline_seconds=600) as client:
                try:
                    print("waiting", flush=True)
                    client.put("key", "1")
                except KeyboardInterrupt:
                    print("interrupted", client.in_loop.pump.is_full, flush=True)
    """
    code, out, errors = program(source, interrupt_at="waiting")

    assert (code, errors) == (0, "")
    assert "interrupted" in out


@pytest.mark.parametrize("call", ["put('key', '1')", "put_many({'key': '1'})", "watch('key').__enter__()"])
def test_ctrl_c_that_comes_just_before_the_thread_begins_to_wait_ends_the_wait(call: str) -> None:
    """`interrupt_main` notes a signal, but does not interrupt the system call in which the main thread waits. The same
    happens if a signal comes between the interpreter's last check for signals and this system call."""
    source = f"""
        import _thread, socket, sys, threading, time
        from kvstore.blocking import Client
        main = threading.main_thread().ident
        def interrupt():
            while sys._current_frames()[main].f_code.co_name not in ("acquire_patiently", "_first_of"):
                time.sleep(0.001)
            _thread.interrupt_main()
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0)); silent.listen()
            with Client([f"127.0.0.1:{{silent.getsockname()[1]}}"], deadline_seconds=600) as client:
                thread = threading.Thread(target=interrupt)
                thread.start()
                try:
                    client.{call}
                except KeyboardInterrupt:
                    print("interrupted")
                thread.join()
    """
    assert program(source) == (0, "interrupted\n", "")


def test_ctrl_c_while_a_thread_waits_for_a_lock_leaves_the_line(member_address: str) -> None:
    source = """
        import sys
        from kvstore.blocking import Client
        with Client([sys.argv[1]]) as client, client.lock("interrupted"):
            try:
                print("waiting", flush=True)
                with client.lock("interrupted"):
                    pass
            except KeyboardInterrupt:
                print("left", flush=True)
        with Client([sys.argv[1]]) as client, client.lock("interrupted", wait_seconds=10) as lock:
            print("held", lock.fence > 0)
    """
    code, out, errors = program(source, member_address, interrupt_at="waiting")

    assert (code, out, errors) == (0, "waiting\nleft\nheld True\n", "")


def test_ctrl_c_in_asyncio_cancels_the_program_and_closes_the_client(member_address: str) -> None:
    source = """
        import asyncio, sys
        from kvstore.asyncio import Client
        async def main():
            async with Client([sys.argv[1]]) as client:
                await client.put("key", "1")
                async with client.lock("asyncio") as lock:
                    try:
                        print("waiting", flush=True)
                        await asyncio.sleep(600)
                    finally:
                        print("cancelled", (await client.get("key")).record.value, flush=True)
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print("ended")
    """
    code, out, errors = program(source, member_address, interrupt_at="waiting")

    assert (code, out, errors) == (0, "waiting\ncancelled b'1'\nended\n", "")


def test_ctrl_c_stops_an_embedded_member_of_asyncio(tmp_path: Path) -> None:
    source = """
        import asyncio, sys
        from kvstore.asyncio import open_node
        async def main():
            async with open_node(sys.argv[1], bootstrap=True) as store:
                await store.put("key", "1")
                print("waiting", flush=True)
                await asyncio.sleep(600)
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print("ended", flush=True)
        async def again():
            async with open_node(sys.argv[1]) as store:
                print((await store.get("key")).record.value)
        asyncio.run(again())
    """
    code, out, errors = program(source, str(tmp_path / "data"), interrupt_at="waiting")

    assert (code, errors) == (0, "")
    assert out.split("\n")[1:3] == ["ended", "b'1'"]


def test_a_program_that_forgets_its_blocking_client_ends(member_address: str) -> None:
    source = """
        import sys
        from kvstore.blocking import Client
        client = Client([sys.argv[1]])
        client.__enter__()
        client.put("key", "1")
        lock = client.lock("forgotten", ttl_seconds=1)
        lock.__enter__()
        print("the end")
    """
    code, out, errors = program(source, member_address)

    assert (code, out, errors) == (0, "the end\n", "")


def test_a_program_that_forgets_its_member_stops_it_at_the_end(tmp_path: Path) -> None:
    source = """
        import sys
        from kvstore.blocking import open_node
        node = open_node(sys.argv[1], bootstrap=True)
        store = node.__enter__()
        store.put("key", "1")
        print("the end")
    """
    again = """
        import sys
        from kvstore.blocking import open_node
        with open_node(sys.argv[1]) as store:
            print(store.get("key").record.value)
    """
    assert program(source, str(tmp_path / "data")) == (0, "the end\n", "")
    assert program(again, str(tmp_path / "data")) == (0, "b'1'\n", "")


FORKS = {
    "threads": """
        import os, sys
        from kvstore import WrongContext
        from kvstore.blocking import Client
        with Client([sys.argv[1]]) as client:
            client.put("fork", "parent")
            child = os.fork()
            if child == 0:
                for call in (lambda: client.get("fork"), lambda: client.lease_renew(1), client.__enter__):
                    try:
                        call()
                    except WrongContext as error:
                        assert "forked" in str(error), error
                    else:
                        os._exit(1)
                client.__exit__(None, None, None)
                with Client([sys.argv[1]]) as own:
                    own.put("fork", "child")
                os._exit(42)
            _, status = os.waitpid(child, 0)
            print(os.waitstatus_to_exitcode(status), client.get("fork").record.value, bool(client.put("fork", "1")))
    """,
    "asyncio": """
        import asyncio, os, sys
        from kvstore import WrongContext
        from kvstore.asyncio import Client
        async def main():
            async with Client([sys.argv[1]]) as client:
                await client.put("fork", "parent")
                child = os.fork()
                if child == 0:
                    try:
                        await client.get("fork")
                    except WrongContext as error:
                        assert "forked" in str(error), error
                    else:
                        os._exit(1)
                    await client.__aexit__(None, None, None)
                    os._exit(42)
                _, status = os.waitpid(child, 0)
                found = await client.get("fork")
                print(os.waitstatus_to_exitcode(status), found.record.value, bool(await client.put("fork", "1")))
        asyncio.run(main())
    """,
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("world", FORKS)
def test_a_client_that_was_entered_before_a_fork_is_the_parents_alone(member_address: str, world: str) -> None:
    code, out, errors = program(FORKS[world].replace("-W error", ""), member_address)

    assert (code, errors) == (0, "")
    assert out == ("42 b'child' True\n" if world == "threads" else "42 b'parent' True\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_does_not_wake_the_loop_of_its_parent() -> None:
    """When the child refuses a call, it also withdraws the call with `tell`. This must not use the socket that wakes
    the loop, because the child shares it with its parent."""
    source = """
        import os
        from kvstore import WrongContext
        from kvstore.blocking.loop_thread import LoopThread
        thread = LoopThread("loop")
        thread.start()
        child = os.fork()
        if child == 0:
            told = []
            thread.loop.call_soon_threadsafe = lambda *call: told.append(call)
            thread.tell(print)
            os._exit(len(told))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status))
        thread.stop()
    """
    assert program(source) == (0, "0\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_thread_of_a_child_does_not_continue_a_chain_of_its_parent() -> None:
    source = """
        import os, threading
        from kvstore import WrongContext
        from kvstore.blocking.loop_thread import LoopThread
        from kvstore.blocking.thread_pump import ThreadPump, finish
        thread = LoopThread("loop")
        thread.start()
        lock = threading.Lock()
        lock.acquire()
        child = os.fork()
        if child == 0:
            told = []
            thread.loop.call_soon_threadsafe = lambda *call: told.append(call)
            thread._chain.append(lock)
            thread._queue.append(None)
            def call():
                try:
                    finish(ThreadPump(None, thread).ask(None, 1.0))
                except WrongContext:
                    told.append("refused")
            caller = threading.Thread(target=call)
            caller.start()
            caller.join()
            os._exit(told == ["refused"])
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status))
        thread.stop()
    """
    assert program(source) == (0, "1\n", "")


class InterruptedAt:
    """Raises KeyboardInterrupt in this thread, at one line of `kvstore.blocking`: the `number`-th that runs."""

    def __init__(self, number: int) -> None:
        self._lines_left = number
        self.is_raised = False

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(BLOCKING):
            return None
        if event == "line":
            self._lines_left -= 1
            if self._lines_left == 0:
                self.is_raised = True
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace


@pytest.mark.skipif(sys.gettrace() is not None, reason="coverage traces this thread")
def test_ctrl_c_at_any_line_that_takes_a_lock_leaves_no_lock_behind(member_address: str, name: str) -> None:
    with Client([member_address]) as client:
        for number in itertools.count(1):
            try:
                with InterruptedAt(number) as interrupted, client.lock(name):
                    sys.settrace(None)
            except KeyboardInterrupt:
                pass
            with client.lock(name, wait_seconds=WAIT_SECONDS_MAX):
                pass
            if not interrupted.is_raised:
                break
        assert number > LINES_MIN


@pytest.mark.skipif(sys.gettrace() is not None, reason="coverage traces this thread")
def test_ctrl_c_at_any_line_that_waits_for_a_change_skips_no_change(member_address: str, name: str) -> None:
    with Client([member_address]) as client, client.watch(prefix=name) as watch:
        for number in itertools.count(1):
            client.put(f"{name}{number}", b"")
            changes = []
            try:
                with InterruptedAt(number) as interrupted:
                    changes.append(next(watch))
            except KeyboardInterrupt:
                changes.append(next(watch))
            assert [change.key for change in changes] == [f"{name}{number}".encode()]
            if not interrupted.is_raised:
                break
        assert number > LINES_MIN
