"""The reflection of gRPC: the services of this port and the descriptions of their messages, for tools."""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from kvstore.etcd.backend import Context
from kvstore.etcd.errors import Status
from kvstore.etcd.schema import METHODS, Message, files, make


async def handle_reflection(context: Context) -> None:
    """Serve a ServerReflectionInfo stream: one response for each request, in order."""
    call = context.call
    package = call.method.service.rpartition(".")[0]
    while (asked := await call.inbox.get()) is not None:
        await call.room()
        response = make(f"{package}.ServerReflectionResponse", valid_host=asked.host, original_request=asked)
        _answer(asked, response)
        call.send(response)


def _answer(asked: Message, response: Message) -> None:
    kind = asked.WhichOneof("message_request")
    found: list[FileDescriptorProto] = []
    if kind == "list_services":
        response.list_services_response.SetInParent()
        for name in sorted({method.service for method in METHODS.values()}):
            response.list_services_response.service.add(name=name)
        return
    if kind == "file_by_filename":
        found = [file for file in files() if file.name == asked.file_by_filename]
    elif kind == "file_containing_symbol":
        found = [file for file in files() if asked.file_containing_symbol in _symbols_of(file)]
    if found:
        response.file_descriptor_response.file_descriptor_proto.extend(_with_dependencies(found[0]))
        return
    response.error_response.error_code = Status.NOT_FOUND
    response.error_response.error_message = "this port has no such file or symbol, and no extensions"


def _symbols_of(file: FileDescriptorProto) -> set[str]:
    names = [each.name for each in file.message_type]
    names += [each.name for each in file.enum_type]
    names += [each.name for each in file.service]
    names += [f"{service.name}.{method.name}" for service in file.service for method in service.method]
    names += [f"{message.name}.{inner.name}" for message in file.message_type for inner in message.enum_type]
    return {f"{file.package}.{name}" for name in names}


def _with_dependencies(file: FileDescriptorProto) -> list[bytes]:
    """Return the descriptions of a file and of all files that it needs, each before those that it needs."""
    wanted = {file.name}
    found = []
    for each in reversed(files()):  # A file stands behind the files that it needs.
        if each.name in wanted:
            found.append(each.SerializeToString())
            wanted.update(each.dependency)
    return found
