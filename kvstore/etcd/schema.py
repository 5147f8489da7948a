"""The messages and methods of etcd's API v3, as tables, and the classes that protobuf makes from these tables.

The classes are made in a descriptor pool of their own. A program that also loads other definitions of the same messages
therefore has no conflict.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

Message = Any
"""An instance of a class that `message_class` returns. protobuf makes these classes when the program runs."""

_HEADER = "header=1:ResponseHeader"

# A message: "name=number:type ...". `*` repeated; `name/oneof`: a field of a oneof. A type without a dot is a scalar
# type, or belongs to the package of the message.
_ENUMS: dict[str, dict[str, int]] = {
    "authpb.Permission.Type": {"READ": 0, "WRITE": 1, "READWRITE": 2},
    "mvccpb.Event.EventType": {"PUT": 0, "DELETE": 1},
    "etcdserverpb.RangeRequest.SortOrder": {"NONE": 0, "ASCEND": 1, "DESCEND": 2},
    "etcdserverpb.RangeRequest.SortTarget": {"KEY": 0, "VERSION": 1, "CREATE": 2, "MOD": 3, "VALUE": 4},
    "etcdserverpb.Compare.CompareResult": {"EQUAL": 0, "GREATER": 1, "LESS": 2, "NOT_EQUAL": 3},
    "etcdserverpb.Compare.CompareTarget": {"VERSION": 0, "CREATE": 1, "MOD": 2, "VALUE": 3, "LEASE": 4},
    "etcdserverpb.WatchCreateRequest.FilterType": {"NOPUT": 0, "NODELETE": 1},
    "etcdserverpb.AlarmRequest.AlarmAction": {"GET": 0, "ACTIVATE": 1, "DEACTIVATE": 2},
    "etcdserverpb.DowngradeRequest.DowngradeAction": {"VALIDATE": 0, "ENABLE": 1, "CANCEL": 2},
    "etcdserverpb.AlarmType": {"NONE": 0, "NOSPACE": 1, "CORRUPT": 2},
    "grpc.health.v1.HealthCheckResponse.ServingStatus": {
        "UNKNOWN": 0,
        "SERVING": 1,
        "NOT_SERVING": 2,
        "SERVICE_UNKNOWN": 3,
    },
}

_MESSAGES: dict[str, str] = {
    "authpb.UserAddOptions": "no_password=1:bool",
    "authpb.Permission": "permType=1:Permission.Type key=2:bytes range_end=3:bytes",
    "mvccpb.KeyValue": "key=1:bytes create_revision=2:int64 mod_revision=3:int64 version=4:int64 value=5:bytes "
    "lease=6:int64",
    "mvccpb.Event": "type=1:Event.EventType kv=2:KeyValue prev_kv=3:KeyValue",
    "etcdserverpb.ResponseHeader": "cluster_id=1:uint64 member_id=2:uint64 revision=3:int64 raft_term=4:uint64",
    # Keys and values.
    "etcdserverpb.RangeRequest": "key=1:bytes range_end=2:bytes limit=3:int64 revision=4:int64 "
    "sort_order=5:RangeRequest.SortOrder sort_target=6:RangeRequest.SortTarget serializable=7:bool keys_only=8:bool "
    "count_only=9:bool min_mod_revision=10:int64 max_mod_revision=11:int64 min_create_revision=12:int64 "
    "max_create_revision=13:int64",
    "etcdserverpb.RangeResponse": f"{_HEADER} kvs=2:*mvccpb.KeyValue more=3:bool count=4:int64",
    "etcdserverpb.PutRequest": "key=1:bytes value=2:bytes lease=3:int64 prev_kv=4:bool ignore_value=5:bool "
    "ignore_lease=6:bool",
    "etcdserverpb.PutResponse": f"{_HEADER} prev_kv=2:mvccpb.KeyValue",
    "etcdserverpb.DeleteRangeRequest": "key=1:bytes range_end=2:bytes prev_kv=3:bool",
    "etcdserverpb.DeleteRangeResponse": f"{_HEADER} deleted=2:int64 prev_kvs=3:*mvccpb.KeyValue",
    "etcdserverpb.RequestOp": "request_range/request=1:RangeRequest request_put/request=2:PutRequest "
    "request_delete_range/request=3:DeleteRangeRequest request_txn/request=4:TxnRequest",
    "etcdserverpb.ResponseOp": "response_range/response=1:RangeResponse response_put/response=2:PutResponse "
    "response_delete_range/response=3:DeleteRangeResponse response_txn/response=4:TxnResponse",
    "etcdserverpb.Compare": "result=1:Compare.CompareResult target=2:Compare.CompareTarget key=3:bytes "
    "version/target_union=4:int64 create_revision/target_union=5:int64 mod_revision/target_union=6:int64 "
    "value/target_union=7:bytes lease/target_union=8:int64 range_end=64:bytes",
    "etcdserverpb.TxnRequest": "compare=1:*Compare success=2:*RequestOp failure=3:*RequestOp",
    "etcdserverpb.TxnResponse": f"{_HEADER} succeeded=2:bool responses=3:*ResponseOp",
    "etcdserverpb.CompactionRequest": "revision=1:int64 physical=2:bool",
    "etcdserverpb.CompactionResponse": _HEADER,
    # Watches.
    "etcdserverpb.WatchCreateRequest": "key=1:bytes range_end=2:bytes start_revision=3:int64 progress_notify=4:bool "
    "filters=5:*WatchCreateRequest.FilterType prev_kv=6:bool watch_id=7:int64 fragment=8:bool",
    "etcdserverpb.WatchCancelRequest": "watch_id=1:int64",
    "etcdserverpb.WatchProgressRequest": "",
    "etcdserverpb.WatchRequest": "create_request/request_union=1:WatchCreateRequest "
    "cancel_request/request_union=2:WatchCancelRequest progress_request/request_union=3:WatchProgressRequest",
    "etcdserverpb.WatchResponse": f"{_HEADER} watch_id=2:int64 created=3:bool canceled=4:bool compact_revision=5:int64 "
    "cancel_reason=6:string fragment=7:bool events=11:*mvccpb.Event",
    # Leases.
    "etcdserverpb.LeaseGrantRequest": "TTL=1:int64 ID=2:int64",
    "etcdserverpb.LeaseGrantResponse": f"{_HEADER} ID=2:int64 TTL=3:int64 error=4:string",
    "etcdserverpb.LeaseRevokeRequest": "ID=1:int64",
    "etcdserverpb.LeaseRevokeResponse": _HEADER,
    "etcdserverpb.LeaseKeepAliveRequest": "ID=1:int64",
    "etcdserverpb.LeaseKeepAliveResponse": f"{_HEADER} ID=2:int64 TTL=3:int64",
    "etcdserverpb.LeaseTimeToLiveRequest": "ID=1:int64 keys=2:bool",
    "etcdserverpb.LeaseTimeToLiveResponse": f"{_HEADER} ID=2:int64 TTL=3:int64 grantedTTL=4:int64 keys=5:*bytes",
    "etcdserverpb.LeaseLeasesRequest": "",
    "etcdserverpb.LeaseStatus": "ID=1:int64",
    "etcdserverpb.LeaseLeasesResponse": f"{_HEADER} leases=2:*LeaseStatus",
    # Members.
    "etcdserverpb.Member": "ID=1:uint64 name=2:string peerURLs=3:*string clientURLs=4:*string isLearner=5:bool",
    "etcdserverpb.MemberAddRequest": "peerURLs=1:*string isLearner=2:bool",
    "etcdserverpb.MemberAddResponse": f"{_HEADER} member=2:Member members=3:*Member",
    "etcdserverpb.MemberRemoveRequest": "ID=1:uint64",
    "etcdserverpb.MemberRemoveResponse": f"{_HEADER} members=2:*Member",
    "etcdserverpb.MemberUpdateRequest": "ID=1:uint64 peerURLs=2:*string",
    "etcdserverpb.MemberUpdateResponse": f"{_HEADER} members=2:*Member",
    "etcdserverpb.MemberListRequest": "linearizable=1:bool",
    "etcdserverpb.MemberListResponse": f"{_HEADER} members=2:*Member",
    "etcdserverpb.MemberPromoteRequest": "ID=1:uint64",
    "etcdserverpb.MemberPromoteResponse": f"{_HEADER} members=2:*Member",
    # Maintenance.
    "etcdserverpb.AlarmRequest": "action=1:AlarmRequest.AlarmAction memberID=2:uint64 alarm=3:AlarmType",
    "etcdserverpb.AlarmMember": "memberID=1:uint64 alarm=2:AlarmType",
    "etcdserverpb.AlarmResponse": f"{_HEADER} alarms=2:*AlarmMember",
    "etcdserverpb.StatusRequest": "",
    "etcdserverpb.StatusResponse": f"{_HEADER} version=2:string dbSize=3:int64 leader=4:uint64 raftIndex=5:uint64 "
    "raftTerm=6:uint64 raftAppliedIndex=7:uint64 errors=8:*string dbSizeInUse=9:int64 isLearner=10:bool",
    "etcdserverpb.DefragmentRequest": "",
    "etcdserverpb.DefragmentResponse": _HEADER,
    "etcdserverpb.HashRequest": "",
    "etcdserverpb.HashResponse": f"{_HEADER} hash=2:uint32",
    "etcdserverpb.HashKVRequest": "revision=1:int64",
    "etcdserverpb.HashKVResponse": f"{_HEADER} hash=2:uint32 compact_revision=3:int64",
    "etcdserverpb.SnapshotRequest": "",
    "etcdserverpb.SnapshotResponse": f"{_HEADER} remaining_bytes=2:uint64 blob=3:bytes",
    "etcdserverpb.MoveLeaderRequest": "targetID=1:uint64",
    "etcdserverpb.MoveLeaderResponse": _HEADER,
    "etcdserverpb.DowngradeRequest": "action=1:DowngradeRequest.DowngradeAction version=2:string",
    "etcdserverpb.DowngradeResponse": f"{_HEADER} version=2:string",
    # Users and roles.
    "etcdserverpb.AuthEnableRequest": "",
    "etcdserverpb.AuthEnableResponse": _HEADER,
    "etcdserverpb.AuthDisableRequest": "",
    "etcdserverpb.AuthDisableResponse": _HEADER,
    "etcdserverpb.AuthStatusRequest": "",
    "etcdserverpb.AuthStatusResponse": f"{_HEADER} enabled=2:bool authRevision=3:uint64",
    "etcdserverpb.AuthenticateRequest": "name=1:string password=2:string",
    "etcdserverpb.AuthenticateResponse": f"{_HEADER} token=2:string",
    "etcdserverpb.AuthUserAddRequest": "name=1:string password=2:string options=3:authpb.UserAddOptions "
    "hashedPassword=4:string",
    "etcdserverpb.AuthUserAddResponse": _HEADER,
    "etcdserverpb.AuthUserGetRequest": "name=1:string",
    "etcdserverpb.AuthUserGetResponse": f"{_HEADER} roles=2:*string",
    "etcdserverpb.AuthUserListRequest": "",
    "etcdserverpb.AuthUserListResponse": f"{_HEADER} users=2:*string",
    "etcdserverpb.AuthUserDeleteRequest": "name=1:string",
    "etcdserverpb.AuthUserDeleteResponse": _HEADER,
    "etcdserverpb.AuthUserChangePasswordRequest": "name=1:string password=2:string hashedPassword=3:string",
    "etcdserverpb.AuthUserChangePasswordResponse": _HEADER,
    "etcdserverpb.AuthUserGrantRoleRequest": "user=1:string role=2:string",
    "etcdserverpb.AuthUserGrantRoleResponse": _HEADER,
    "etcdserverpb.AuthUserRevokeRoleRequest": "name=1:string role=2:string",
    "etcdserverpb.AuthUserRevokeRoleResponse": _HEADER,
    "etcdserverpb.AuthRoleAddRequest": "name=1:string",
    "etcdserverpb.AuthRoleAddResponse": _HEADER,
    "etcdserverpb.AuthRoleGetRequest": "role=1:string",
    "etcdserverpb.AuthRoleGetResponse": f"{_HEADER} perm=2:*authpb.Permission",
    "etcdserverpb.AuthRoleListRequest": "",
    "etcdserverpb.AuthRoleListResponse": f"{_HEADER} roles=2:*string",
    "etcdserverpb.AuthRoleDeleteRequest": "role=1:string",
    "etcdserverpb.AuthRoleDeleteResponse": _HEADER,
    "etcdserverpb.AuthRoleGrantPermissionRequest": "name=1:string perm=2:authpb.Permission",
    "etcdserverpb.AuthRoleGrantPermissionResponse": _HEADER,
    "etcdserverpb.AuthRoleRevokePermissionRequest": "role=1:string key=2:bytes range_end=3:bytes",
    "etcdserverpb.AuthRoleRevokePermissionResponse": _HEADER,
    # Locks and elections.
    "v3lockpb.LockRequest": "name=1:bytes lease=2:int64",
    "v3lockpb.LockResponse": "header=1:etcdserverpb.ResponseHeader key=2:bytes",
    "v3lockpb.UnlockRequest": "key=1:bytes",
    "v3lockpb.UnlockResponse": "header=1:etcdserverpb.ResponseHeader",
    "v3electionpb.LeaderKey": "name=1:bytes key=2:bytes rev=3:int64 lease=4:int64",
    "v3electionpb.CampaignRequest": "name=1:bytes lease=2:int64 value=3:bytes",
    "v3electionpb.CampaignResponse": "header=1:etcdserverpb.ResponseHeader leader=2:LeaderKey",
    "v3electionpb.ProclaimRequest": "leader=1:LeaderKey value=2:bytes",
    "v3electionpb.ProclaimResponse": "header=1:etcdserverpb.ResponseHeader",
    "v3electionpb.LeaderRequest": "name=1:bytes",
    "v3electionpb.LeaderResponse": "header=1:etcdserverpb.ResponseHeader kv=2:mvccpb.KeyValue",
    "v3electionpb.ResignRequest": "leader=1:LeaderKey",
    "v3electionpb.ResignResponse": "header=1:etcdserverpb.ResponseHeader",
    # Health.
    "grpc.health.v1.HealthCheckRequest": "service=1:string",
    "grpc.health.v1.HealthCheckResponse": "status=1:HealthCheckResponse.ServingStatus",
}

# Reflection, in two versions with the same messages.
_REFLECTION: dict[str, str] = {
    "ExtensionRequest": "containing_type=1:string extension_number=2:int32",
    "ServerReflectionRequest": "host=1:string file_by_filename/message_request=3:string "
    "file_containing_symbol/message_request=4:string "
    "file_containing_extension/message_request=5:ExtensionRequest "
    "all_extension_numbers_of_type/message_request=6:string list_services/message_request=7:string",
    "FileDescriptorResponse": "file_descriptor_proto=1:*bytes",
    "ExtensionNumberResponse": "base_type_name=1:string extension_number=2:*int32",
    "ServiceResponse": "name=1:string",
    "ListServiceResponse": "service=1:*ServiceResponse",
    "ErrorResponse": "error_code=1:int32 error_message=2:string",
    "ServerReflectionResponse": "valid_host=1:string original_request=2:ServerReflectionRequest "
    "file_descriptor_response/message_response=4:FileDescriptorResponse "
    "all_extension_numbers_response/message_response=5:ExtensionNumberResponse "
    "list_services_response/message_response=6:ListServiceResponse error_response/message_response=7:ErrorResponse",
}
REFLECTION_PACKAGES = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
_MESSAGES |= {f"{each}.{name}": fields for each in REFLECTION_PACKAGES for name, fields in _REFLECTION.items()}

PACKAGES = (
    "authpb",
    "mvccpb",
    "etcdserverpb",
    "v3lockpb",
    "v3electionpb",
    "grpc.health.v1",
    *REFLECTION_PACKAGES,
)
"""The packages, each after the packages that it uses."""


class Method(NamedTuple):
    """One method of a service. `gateway`: its paths in the JSON gateway."""

    service: str
    name: str
    request: str
    response: str
    takes_stream: bool = False
    gives_stream: bool = False
    gateway: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The path of the method in HTTP/2."""
        return f"/{self.service}/{self.name}"

    @property
    def is_paced(self) -> bool:
        """True if a connection may make only so many requests of this stream in a time (`kvstore.etcd.pace`)."""
        return self.service == "etcdserverpb.Watch"


def _methods() -> Iterator[Method]:
    def of(service: str, rows: str) -> Iterator[Method]:
        package = service.rpartition(".")[0]
        for row in rows.split(";"):
            name, messages, *paths = row.split()
            stream_in, stream_out = "<" in messages, ">" in messages
            stem = f"{package}.{messages.strip('<>')}"
            yield Method(service, name, f"{stem}Request", f"{stem}Response", stream_in, stream_out, tuple(paths))

    yield from of(
        "etcdserverpb.KV",
        "Range Range /kv/range; Put Put /kv/put; DeleteRange DeleteRange /kv/deleterange; Txn Txn /kv/txn; "
        "Compact Compaction /kv/compaction",
    )
    yield from of("etcdserverpb.Watch", "Watch <Watch> /watch")
    yield from of(
        "etcdserverpb.Lease",
        "LeaseGrant LeaseGrant /lease/grant; LeaseRevoke LeaseRevoke /lease/revoke /kv/lease/revoke; "
        "LeaseKeepAlive <LeaseKeepAlive> /lease/keepalive; "
        "LeaseTimeToLive LeaseTimeToLive /lease/timetolive /kv/lease/timetolive; "
        "LeaseLeases LeaseLeases /lease/leases /kv/lease/leases",
    )
    yield from of(
        "etcdserverpb.Cluster",
        "MemberAdd MemberAdd /cluster/member/add; MemberRemove MemberRemove /cluster/member/remove; "
        "MemberUpdate MemberUpdate /cluster/member/update; MemberList MemberList /cluster/member/list; "
        "MemberPromote MemberPromote /cluster/member/promote",
    )
    yield from of(
        "etcdserverpb.Maintenance",
        "Alarm Alarm /maintenance/alarm; Status Status /maintenance/status; "
        "Defragment Defragment /maintenance/defragment; Hash Hash /maintenance/hash; "
        "HashKV HashKV /maintenance/hashkv /maintenance/hash; Snapshot Snapshot> /maintenance/snapshot; "
        "MoveLeader MoveLeader /maintenance/transfer-leadership; Downgrade Downgrade /maintenance/downgrade",
    )
    yield from of(
        "etcdserverpb.Auth",
        "AuthEnable AuthEnable /auth/enable; AuthDisable AuthDisable /auth/disable; "
        "AuthStatus AuthStatus /auth/status; Authenticate Authenticate /auth/authenticate; "
        "UserAdd AuthUserAdd /auth/user/add; UserGet AuthUserGet /auth/user/get; "
        "UserList AuthUserList /auth/user/list; UserDelete AuthUserDelete /auth/user/delete; "
        "UserChangePassword AuthUserChangePassword /auth/user/changepw; "
        "UserGrantRole AuthUserGrantRole /auth/user/grant; UserRevokeRole AuthUserRevokeRole /auth/user/revoke; "
        "RoleAdd AuthRoleAdd /auth/role/add; RoleGet AuthRoleGet /auth/role/get; "
        "RoleList AuthRoleList /auth/role/list; RoleDelete AuthRoleDelete /auth/role/delete; "
        "RoleGrantPermission AuthRoleGrantPermission /auth/role/grant; "
        "RoleRevokePermission AuthRoleRevokePermission /auth/role/revoke",
    )
    yield from of("v3lockpb.Lock", "Lock Lock /lock/lock; Unlock Unlock /lock/unlock")
    yield from of(
        "v3electionpb.Election",
        "Campaign Campaign /election/campaign; Proclaim Proclaim /election/proclaim; Leader Leader /election/leader; "
        "Observe Leader> /election/observe; Resign Resign /election/resign",
    )
    yield from of("grpc.health.v1.Health", "Check HealthCheck; Watch HealthCheck>")
    for each in REFLECTION_PACKAGES:
        yield from of(f"{each}.ServerReflection", "ServerReflectionInfo <ServerReflection>")


METHODS: dict[str, Method] = {method.path: method for method in _methods()}
"""The methods by path."""

_SCALARS = {
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "int32": FieldDescriptorProto.TYPE_INT32,
}


@cache
def files() -> tuple[FileDescriptorProto, ...]:
    """The descriptions of all messages, one file for each package."""
    return tuple(map(_file_of, PACKAGES))


@cache
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in files():
        pool.Add(file)
    return pool


@cache
def message_class(name: str) -> Any:
    """The class of a message, such as `etcdserverpb.PutRequest`. The first call takes some 10 ms."""
    return GetMessageClass(_pool().FindMessageTypeByName(name))


def make(name: str, /, **fields: Any) -> Message:
    """A message of `etcdserverpb`, or of the package that `name` contains."""
    return message_class(name if "." in name else f"etcdserverpb.{name}")(**fields)


def _package_of(name: str) -> str:
    return next(package for package in PACKAGES if name.startswith(f"{package}."))


def _file_of(package: str) -> FileDescriptorProto:
    file = FileDescriptorProto(name=f"highwatermark/{package}.proto", package=package, syntax="proto3")
    used: dict[str, None] = {}
    for name, fields in _MESSAGES.items():
        if _package_of(name) == package:
            file.message_type.append(_message_of(package, name, fields, used))
    for name, values in _ENUMS.items():
        if _package_of(name) != package:
            continue
        *outer, own = name.removeprefix(f"{package}.").split(".")
        place = file if not outer else next(each for each in file.message_type if each.name == outer[0])
        place.enum_type.append(
            EnumDescriptorProto(
                name=own,
                value=[{"name": value, "number": number} for value, number in values.items()],  # type: ignore[misc]
            )
        )
    for each in METHODS.values():
        if _package_of(each.service) == package:
            _add_method(file, each, used)
    used.pop(package, None)
    file.dependency.extend(f"highwatermark/{each}.proto" for each in used)
    return file


def _message_of(package: str, name: str, fields: str, used: dict[str, None]) -> DescriptorProto:
    message = DescriptorProto(name=name.removeprefix(f"{package}."))
    oneofs: list[str] = []
    for item in fields.split():
        names, _, rest = item.partition("=")
        own, _, oneof = names.partition("/")
        number, _, kind = rest.partition(":")
        field = message.field.add(name=own, number=int(number), label=FieldDescriptorProto.LABEL_OPTIONAL)
        if kind.startswith("*"):
            field.label = FieldDescriptorProto.LABEL_REPEATED
            kind = kind[1:]
        if oneof:
            if oneof not in oneofs:
                oneofs.append(oneof)
                message.oneof_decl.add(name=oneof)
            field.oneof_index = oneofs.index(oneof)
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
            continue
        full = kind if kind in _MESSAGES or kind in _ENUMS else f"{package}.{kind}"
        field.type_name = f".{full}"
        field.type = FieldDescriptorProto.TYPE_ENUM if full in _ENUMS else FieldDescriptorProto.TYPE_MESSAGE
        used[_package_of(full)] = None
    return message


def _add_method(file: FileDescriptorProto, method: Method, used: dict[str, None]) -> None:
    name = method.service.rpartition(".")[2]
    service = next((each for each in file.service if each.name == name), None) or file.service.add(name=name)
    service.method.add(
        name=method.name,
        input_type=f".{method.request}",
        output_type=f".{method.response}",
        client_streaming=method.takes_stream,
        server_streaming=method.gives_stream,
    )
    used[_package_of(method.request)] = used[_package_of(method.response)] = None
