"""Reads histories of Jepsen and Knossos about registers with compare-and-set, as EDN maps or as printed lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, TextIO

from spark_audit.imports.edn import Name, NotEdn, form_of, forms, name, text_of
from spark_audit.imports.events import Event, Settings, refused

REGISTER = "register"  # The key of a history that has only one register.
_PROCESS, _TYPE, _F, _VALUE, _TIME, _ERROR = (
    name(f":{field}") for field in ("process", "type", "f", "value", "time", "error")
)
_TYPES: Final = {name(f":{type_}"): type_ for type_ in ("invoke", "ok", "fail", "info")}
_OPS: Final = {name(":read"): "get", name(":write"): "put", name(":cas"): "cas"}

# An event is printed as `INFO  jepsen.util - 3\t:ok\t:read\tnil`, perhaps with a stamp and a thread in front, or, in
# history.txt, without the prefix `INFO  jepsen.util - `. Other lines of a log can look similar (`:type :ok,`). So if a
# line lacks the prefix or the process number, it counts as an event only if a type follows.
_BEGUN = r"(?:\d+|:[\w.+-]+)\s+:(?:invoke|ok|fail|info)(?!\S)"
_LINE = re.compile(rf"(?:(?:.*\s)?jepsen\.util(?:\s+-|:)?\s+(?=\d+(?:\s|$)|{_BEGUN})|(?={_BEGUN}))(?P<event>.*)")
_EVENT = re.compile(r"(?P<process>\d+|:[\w.+-]+)\s+(?P<type>:[a-z]+)\s+(?P<f>:[^\s]+)\s+(?P<value>[^\s].*)")


class JepsenEdn:
    """Reads one map per event: `{:process 0, :type :invoke, :f :read, :value nil, :time 4, :index 0}`."""

    def __init__(self, settings: Settings) -> None:
        self.left_out: Counter[str] = Counter()
        self._register = _Register(settings)

    def events(self, text: TextIO) -> Iterator[Event]:
        """Yield the events of a history, in the order of its lines."""
        try:
            for line, form in forms(text):
                event = self._event(line, form)
                if event is not None:
                    yield event
        except NotEdn as error:
            raise refused(error.line, error.expected, error.found) from error

    def _event(self, line: int, form: Any) -> Event | None:
        if not isinstance(form, dict):
            raise refused(line, "a map such as {:process 0, :type :invoke, :f :read, :value nil}", text_of(form))
        process = form.get(_PROCESS)
        if isinstance(process, Name) and process.startswith(":"):
            self.left_out[f"events of {process}"] += 1
            return None
        if not (isinstance(process, int) and process >= 0):
            raise refused(line, "a :process that is a number, or a keyword such as :nemesis", text_of(process))
        time_ns = form.get(_TIME)
        if time_ns is not None and not (isinstance(time_ns, int) and 0 <= time_ns < 2**62):
            raise refused(line, "a :time in nanoseconds", text_of(time_ns))
        error = form.get(_ERROR)
        cause = None if error is None else text_of(error)
        return self._register.event(line, process, form.get(_TYPE), form.get(_F), form.get(_VALUE), time_ns, cause)


class JepsenLog:
    """Reads the lines that Jepsen prints: process, type, f, value, and possibly an error after the value."""

    def __init__(self, settings: Settings) -> None:
        self.left_out: Counter[str] = Counter()
        self._register = _Register(settings)

    def events(self, text: TextIO) -> Iterator[Event]:
        """Yield the events of a history, in the order of its lines."""
        for line, content in enumerate(text, 1):
            match = _LINE.fullmatch(content.strip())
            if match is not None:
                event = self._event(line, match["event"])
                if event is not None:
                    yield event
            elif content.strip():
                self.left_out["other lines"] += 1

    def _event(self, line: int, text: str) -> Event | None:
        match = _EVENT.fullmatch(text)
        if match is None:
            raise refused(line, "process, type, f and value, such as `3 :ok :read nil`", text)
        process, type_, f, value = match.groups()
        if process.startswith(":"):
            self.left_out[f"events of {process}"] += 1
            return None
        # An error follows after a tab; the text of the error need not be EDN.
        value, _, error = value.partition("\t")
        cause = error.strip() or None
        if type_ in (":fail", ":info"):
            # A keyword in place of the value is the reason of the failure. Any other value repeats the value of the
            # call.
            reason = Name(value) if value.startswith(":") else None
            return self._register.event(line, int(process), Name(type_), Name(f), reason, None, cause)
        try:
            form = form_of(value, line)
        except NotEdn as wrong:
            raise refused(line, wrong.expected, wrong.found) from wrong
        return self._register.event(line, int(process), Name(type_), Name(f), form, None, cause)


class _Register:
    """Turns lines into events, for one register or for several; with several, values have the form `[key value]`."""

    def __init__(self, settings: Settings) -> None:
        self._independent = settings.independent
        self._nil_read_unknown = settings.nil_read_unknown

    def event(
        self, line: int, process: int, type_: Any, f: Any, value: Any, time_ns: int | None, error: str | None
    ) -> Event:
        if not isinstance(type_, Name) or type_ not in _TYPES:
            raise refused(line, ":type :invoke, :ok, :fail or :info", text_of(type_))
        if not isinstance(f, Name) or f not in _OPS:
            raise refused(line, ":f :read, :write or :cas", text_of(f))
        op, kind = _OPS[f], _TYPES[type_]
        if kind in ("fail", "info"):
            # In a line such as `:info :write :timed-out`, the reason of the failure takes the place of the value.
            reason = text_of(value) if error is None and isinstance(value, Name) else error
            return Event(line, process, kind, op, "", None, None, time_ns, reason)
        if self._independent is None:
            self._independent = _is_keyed(op, value)
        key = REGISTER
        if self._independent:
            if not isinstance(value, tuple) or len(value) != 2:
                raise refused(line, "a value [key value], as the first operation had", text_of(value))
            key, value = text_of(value[0]), value[1]
        if op != "cas":
            text = None if op == "get" and value is None and self._nil_read_unknown else text_of(value)
            return Event(line, process, kind, op, key, text, None, time_ns, error)
        if not isinstance(value, tuple) or len(value) != 2:
            raise refused(line, "a value [expected new] of a :cas", text_of(value))
        return Event(line, process, kind, op, key, text_of(value[1]), text_of(value[0]), time_ns, error)


def _is_keyed(op: str, value: Any) -> bool:
    """Return whether the first value has the form `[key value]` of `jepsen.independent`.

    The result is a guess, because a value of a register that holds pairs has the same form.
    """
    pair = isinstance(value, tuple) and len(value) == 2
    return pair and (op != "cas" or (isinstance(value[1], tuple) and len(value[1]) == 2))
