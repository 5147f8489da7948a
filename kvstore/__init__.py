"""An ordered, versioned, replicated key-value store: a client, a server, and a node to embed.

    from kvstore import Client                # talks to a cluster
    from kvstore import open_node             # runs a member inside this program

The names below are the public interface. The parts that run a member (`open_node`, `run_member`, …) are loaded on first
use, so a program that uses only `Client` loads neither `storage` nor `raft.runtime`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstore.access.calls import (
    add_user,
    auth_switch,
    change_access,
    change_password,
    enable_auth,
    list_roles,
    list_users,
)
from kvstore.access.credentials import Credentials
from kvstore.access.passwords import InvalidPassword, verifier_with
from kvstore.access.requests import AccessSwitch, RoleView, UserView
from kvstore.cli.standard_streams import end_with_true_exit_code
from kvstore.client.calls import CallEnded, ClientEffects
from kvstore.client.client import Client, connect
from kvstore.client.client_limits import ClientLimits
from kvstore.client.core import ClientStateMachine
from kvstore.client.feature_level import raise_feature_level
from kvstore.client.membership import MemberCalls
from kvstore.client.recording.recorder import OperationRecorder, RecordedOperation
from kvstore.client.watches.watch import Watch
from kvstore.connection_url import InvalidUrl
from kvstore.errors import (
    AccessDenied,
    AccessRefused,
    AuthRevisionOld,
    Busy,
    CannotServe,
    ChangeRefused,
    ClientClosed,
    Compacted,
    GroupMismatch,
    InternalError,
    InvalidAddress,
    InvalidRequest,
    KvError,
    LeadershipLost,
    LeaseExists,
    LeaseLost,
    LeaseNotFound,
    LevelRefused,
    LevelTooLow,
    LimitsRefused,
    LockLost,
    LockTimeout,
    NotANumber,
    NotCommitted,
    NotEnoughInSync,
    OperationFailed,
    OutcomeUnknown,
    PermissionDenied,
    PositionConflict,
    QuotaExceeded,
    ReachableByOthers,
    Reason,
    RequestClosed,
    RequestTooLarge,
    ResponseTooLarge,
    ResultCode,
    RevisionAhead,
    RevisionCompacted,
    SessionExpired,
    StoreBusy,
    StoreError,
    TooStale,
    TransactionConflict,
    TransferRefused,
    Unauthenticated,
    Unavailable,
    UnderReplicated,
    Unsupported,
    UnusableFile,
    WrongContext,
)
from kvstore.limits import FEATURE_LEVELS, AdmissionLimits, ServiceLimits, StoreLimits
from kvstore.password_source import UnusablePassword
from kvstore.protocol.access_commands import (
    AccessCommand,
    AuthDisable,
    AuthEnable,
    ChangeUserLimits,
    Right,
    RoleAdd,
    RoleGrant,
    RoleRemove,
    RoleRevoke,
    UserAdd,
    UserGrant,
    UserLimits,
    UserPassword,
    UserRemove,
    UserRevoke,
)
from kvstore.protocol.commands import (
    Add,
    Append,
    ChangeLimits,
    CloseSession,
    Command,
    CommandKind,
    Compact,
    Compare,
    CompareAndSet,
    Comparison,
    Delete,
    DeleteRange,
    Get,
    KeepAlive,
    LeaseGrant,
    LeaseRenew,
    LeaseRevoke,
    Operation,
    Put,
    RaiseFeatureLevel,
    Range,
    RegisterSession,
    Target,
    Txn,
    command_body,
    command_of,
    decode_payload,
    encode_command,
    prefix_range,
)
from kvstore.protocol.lease_requests import LeaseDetails, LeasePage, LeaseView
from kvstore.protocol.membership import Membership, MemberView, change_request, membership_request
from kvstore.protocol.messages import (
    Code,
    Consistency,
    EntryFate,
    MembersView,
    Request,
    RequestKind,
    Response,
    command_request,
    members_request,
    outcome_request,
    read_log_request,
    read_request,
    status_request,
    transfer_request,
)
from kvstore.protocol.results import (
    Accepted,
    Acknowledged,
    AddResult,
    Answer,
    AppendResult,
    CompareAndSetResult,
    DeleteRangeResult,
    DeleteResult,
    GetResult,
    KeyRecord,
    LeaseGranted,
    LeaseRevoked,
    LeasesRenewed,
    LogEntry,
    LogPage,
    PutResult,
    RangeResult,
    Record,
    Result,
    SessionRegistered,
    TxnResult,
    read_result,
)
from kvstore.protocol.session_requests import LimitsView, SessionPage, SessionView
from kvstore.protocol.status import MemberStatus, PeerView
from kvstore.protocol.text import from_text, to_text
from kvstore.protocol.watches import Change
from kvstore.recipes.consumers.consumer import Consumer
from kvstore.recipes.consumers.group_keys import GROUPS_PREFIX
from kvstore.recipes.consumers.group_status import GroupStatus
from kvstore.recipes.consumers.position_transaction import PositionMoved, PositionTransaction
from kvstore.recipes.consumers.record import ConsumedRecord
from kvstore.recipes.election import Election, Leadership
from kvstore.recipes.guarded_transaction import GuardedTransaction
from kvstore.recipes.lease import Lease
from kvstore.recipes.lock import Lock
from kvstore.recipes.optimistic_transaction import OptimisticTransaction
from kvstore.server.access_guard import PasswordCheck
from kvstore.server.min_in_sync import has_too_few_in_sync, is_under_replicated
from kvstore.server.service import Service
from kvstore.store.machine import KvMachine, MachineStatus, initial_header
from kvstore.store.snapshot_codec import UnsupportedFeatureLevel
from kvstore.tls import MemberTls, Tls, UnusableCertificates
from raft import Acknowledge, Member

if TYPE_CHECKING:
    from kvstore.embedded import EmbeddedStore, open_node
    from kvstore.member.config import MemberConfig
    from kvstore.member.joining import JoinRefused, MemberRemoved
    from kvstore.member.member import run_member
    from storage import FolderLocked, NotInitialized, StorageError

_LAZY = {
    "FolderLocked": "kvstore.errors",
    "NotInitialized": "kvstore.errors",
    "StorageError": "kvstore.errors",
    "EmbeddedStore": "kvstore.embedded",
    "open_node": "kvstore.embedded",
    "JoinRefused": "kvstore.member.joining",
    "MemberConfig": "kvstore.member.config",
    "MemberRemoved": "kvstore.member.joining",
    "run_member": "kvstore.member.member",
}


def __getattr__(name: str) -> Any:
    """Load `open_node`, `run_member` and the like when a program first uses their names."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from kvstore.package_check import check_not_shadowed

    check_not_shadowed()
    return getattr(import_module(_LAZY[name]), name)


__all__ = [
    "FEATURE_LEVELS",
    "GROUPS_PREFIX",
    "Accepted",
    "AccessCommand",
    "AccessDenied",
    "AccessRefused",
    "AccessSwitch",
    "Acknowledge",
    "Acknowledged",
    "Add",
    "AddResult",
    "AdmissionLimits",
    "Answer",
    "Append",
    "AppendResult",
    "AuthDisable",
    "AuthEnable",
    "AuthRevisionOld",
    "Busy",
    "CallEnded",
    "CannotServe",
    "Change",
    "ChangeLimits",
    "ChangeRefused",
    "ChangeUserLimits",
    "Client",
    "ClientClosed",
    "ClientEffects",
    "ClientLimits",
    "ClientStateMachine",
    "CloseSession",
    "Code",
    "Command",
    "CommandKind",
    "Compact",
    "Compacted",
    "Compare",
    "CompareAndSet",
    "CompareAndSetResult",
    "Comparison",
    "Consistency",
    "ConsumedRecord",
    "Consumer",
    "Credentials",
    "Delete",
    "DeleteRange",
    "DeleteRangeResult",
    "DeleteResult",
    "Election",
    "EmbeddedStore",
    "EntryFate",
    "FolderLocked",
    "Get",
    "GetResult",
    "GroupMismatch",
    "GroupStatus",
    "GuardedTransaction",
    "InternalError",
    "InvalidAddress",
    "InvalidPassword",
    "InvalidRequest",
    "InvalidUrl",
    "JoinRefused",
    "KeepAlive",
    "KeyRecord",
    "KvError",
    "KvMachine",
    "Leadership",
    "LeadershipLost",
    "Lease",
    "LeaseDetails",
    "LeaseExists",
    "LeaseGrant",
    "LeaseGranted",
    "LeaseLost",
    "LeaseNotFound",
    "LeasePage",
    "LeaseRenew",
    "LeaseRevoke",
    "LeaseRevoked",
    "LeaseView",
    "LeasesRenewed",
    "LevelRefused",
    "LevelTooLow",
    "LimitsRefused",
    "LimitsView",
    "Lock",
    "LockLost",
    "LockTimeout",
    "LogEntry",
    "LogPage",
    "MachineStatus",
    "Member",
    "MemberCalls",
    "MemberConfig",
    "MemberRemoved",
    "MemberStatus",
    "MemberTls",
    "MemberView",
    "MembersView",
    "Membership",
    "NotANumber",
    "NotCommitted",
    "NotEnoughInSync",
    "NotInitialized",
    "Operation",
    "OperationFailed",
    "OperationRecorder",
    "OptimisticTransaction",
    "OutcomeUnknown",
    "PasswordCheck",
    "PeerView",
    "PermissionDenied",
    "PositionConflict",
    "PositionMoved",
    "PositionTransaction",
    "Put",
    "PutResult",
    "QuotaExceeded",
    "RaiseFeatureLevel",
    "Range",
    "RangeResult",
    "ReachableByOthers",
    "Reason",
    "Record",
    "RecordedOperation",
    "RegisterSession",
    "Request",
    "RequestClosed",
    "RequestKind",
    "RequestTooLarge",
    "Response",
    "ResponseTooLarge",
    "Result",
    "ResultCode",
    "RevisionAhead",
    "RevisionCompacted",
    "Right",
    "RoleAdd",
    "RoleGrant",
    "RoleRemove",
    "RoleRevoke",
    "RoleView",
    "Service",
    "ServiceLimits",
    "SessionExpired",
    "SessionPage",
    "SessionRegistered",
    "SessionView",
    "StorageError",
    "StoreBusy",
    "StoreError",
    "StoreLimits",
    "Target",
    "Tls",
    "TooStale",
    "TransactionConflict",
    "TransferRefused",
    "Txn",
    "TxnResult",
    "Unauthenticated",
    "Unavailable",
    "UnderReplicated",
    "Unsupported",
    "UnsupportedFeatureLevel",
    "UnusableCertificates",
    "UnusableFile",
    "UnusablePassword",
    "UserAdd",
    "UserGrant",
    "UserLimits",
    "UserPassword",
    "UserRemove",
    "UserRevoke",
    "UserView",
    "Watch",
    "WrongContext",
    "add_user",
    "auth_switch",
    "change_access",
    "change_password",
    "change_request",
    "command_body",
    "command_of",
    "command_request",
    "connect",
    "decode_payload",
    "enable_auth",
    "encode_command",
    "end_with_true_exit_code",
    "from_text",
    "has_too_few_in_sync",
    "initial_header",
    "is_under_replicated",
    "list_roles",
    "list_users",
    "members_request",
    "membership_request",
    "open_node",
    "outcome_request",
    "prefix_range",
    "raise_feature_level",
    "read_log_request",
    "read_request",
    "read_result",
    "run_member",
    "status_request",
    "to_text",
    "transfer_request",
    "verifier_with",
]
