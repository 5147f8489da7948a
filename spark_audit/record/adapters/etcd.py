"""etcd3gw: keys of etcd as registers with revisions, over etcd's JSON gateway."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_audit.record.adapters.calls import Call, ClientName, library, name_of
from spark_audit.record.errors import BadSetting
from spark_audit.record.recorder import Recorder

if TYPE_CHECKING:
    import etcd3gw

PACKAGE = "etcd3gw>=2.7,<3"
# etcd gives these answers before it proposes a write, or instead of carrying it out. Two similar ones do not count.
# After `request timed out`, the write may be carried out later. With `mvcc: database space exceeded`, it may be carried
# out already: a member that finds no space when it applies a write first applies it, and then gives this answer.
_CERTAIN_ANSWERS = (
    "etcdserver: invalid auth token",
    "etcdserver: key is not provided",
    "etcdserver: no leader",
    "etcdserver: permission denied",
    "etcdserver: request is too large",
    "etcdserver: too many requests",
    "etcdserver: user name is empty",
)
_NEVER_CONNECTED = "Failed to establish a new connection"  # From urllib3.
Text = str | bytes


@dataclass(frozen=True, slots=True)
class EtcdValue:
    """What a read found. `mod_revision`: the revision of the write of this value, for `put_if`."""

    value: bytes
    mod_revision: int


def recorded_etcd(recorder: Recorder, store: etcd3gw.Etcd3Client, *, client: ClientName = None) -> RecordedEtcd:
    """Return an object that reads and writes keys of etcd, and records each call with the revisions of the answer.

    `client`: the name of the client of all calls, or a function that returns it; None: each thread is a client. The
    calls raise what etcd3gw raises, and the errors of the recorder. Raises BadSetting if `store` is no client of
    etcd3gw, or sends a request again after an error, and MissingLibrary.
    """
    return RecordedEtcd(recorder, store, client)


class RecordedEtcd:
    """Keys of etcd as recorded registers. Leases, ranges and transactions are not recorded."""

    def __init__(self, recorder: Recorder, store: Any, client: ClientName) -> None:
        etcd3gw = library("etcd3gw", PACKAGE)
        if not isinstance(store, etcd3gw.Etcd3Client):
            raise BadSetting(f"store is {store!r}; give an etcd3gw.Etcd3Client")
        retries = [getattr(adapter, "max_retries", None) for adapter in store.session.adapters.values()]
        if any(each.total for each in retries if each is not None):
            hint = "give a session whose adapters have max_retries=0"
            raise BadSetting(f"the session of the store sends a request again after an error: {retries}; {hint}")
        self._error = library("etcd3gw.exceptions", PACKAGE).Etcd3Exception
        self._recorder, self._store, self._client = recorder, store, client

    def get(self, key: Text, *, serializable: bool = False) -> EtcdValue | None:
        """Return the value of a key, or None. `serializable`: the member answers alone; the value may be old."""
        operation = self._recorder.get(name_of(self._client), key)

        def answer(returned: Mapping[str, Any]) -> None:
            found = _found(returned)
            operation.ok(
                None if found is None else found.value,
                mod_revision=None if found is None else found.mod_revision,
                revision=_revision(returned),
                consistency="local" if serializable else None,
            )

        request = {"key": _base64(key), "serializable": serializable}
        return _found(self._send(operation, answer, "range", request))

    def put(self, key: Text, value: Text) -> int:
        """Write a key. Returns the revision of the write."""
        operation = self._recorder.put(name_of(self._client), key, value)
        request = {"key": _base64(key), "value": _base64(value)}
        return _revision(
            self._send(operation, lambda returned: operation.ok(revision=_revision(returned)), "put", request)
        )

    def delete(self, key: Text) -> bool:
        """Delete a key. Returns whether there was one."""
        operation = self._recorder.delete(name_of(self._client), key)

        def answer(returned: Mapping[str, Any]) -> None:
            operation.ok(found="deleted" in returned, revision=_revision(returned))

        return "deleted" in self._send(operation, answer, "deleterange", {"key": _base64(key)})

    def put_if(self, key: Text, mod_revision: int, value: Text) -> bool:
        """Write a key if its last write has this revision; 0: if it is absent. Returns whether it was written."""
        operation = self._recorder.cas(
            name_of(self._client), key, None, value, expected_mod_revision=mod_revision or None
        )

        def answer(returned: Mapping[str, Any]) -> None:
            if returned.get("succeeded"):
                operation.ok(succeeded=True, revision=_revision(returned))
                return
            seen = _found(returned["responses"][0]["response_range"])
            value = None if seen is None else seen.value
            operation.ok(succeeded=False, found=seen is not None, value=value, revision=_revision(returned))

        name = _base64(key)
        request = {
            "compare": [{"key": name, "result": "EQUAL", "target": "MOD", "mod_revision": mod_revision}],
            "success": [{"request_put": {"key": name, "value": _base64(value)}}],
            "failure": [{"request_range": {"key": name}}],
        }
        return bool(self._send(operation, answer, "txn", request).get("succeeded"))

    def _send(self, operation: Any, answer: Any, path: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        # The methods of etcd3gw return no revisions, so the request is sent here.
        call = Call(operation, answer, self._is_certain)
        returned: Mapping[str, Any] = call.send(
            lambda: self._store.post(self._store.get_url(f"/kv/{path}"), json=request)
        )
        return returned

    def _is_certain(self, error: Exception) -> bool:
        if not isinstance(error, self._error):
            return False
        text = str(error.detail_text)
        try:
            said = json.loads(text)
        except ValueError:
            return _NEVER_CONNECTED in text
        return isinstance(said, dict) and said.get("error") in _CERTAIN_ANSWERS


def _base64(given: Text) -> str:
    return b64encode(given.encode() if isinstance(given, str) else given).decode()


def _revision(returned: Mapping[str, Any]) -> int:
    return int(returned["header"]["revision"])


def _found(returned: Mapping[str, Any]) -> EtcdValue | None:
    """The value in the answer of a read of one key. The gateway leaves out empty fields."""
    for each in returned.get("kvs", ()):
        return EtcdValue(b64decode(each.get("value", "")), int(each["mod_revision"]))
    return None
