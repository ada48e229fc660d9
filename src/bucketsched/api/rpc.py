"""Unary RPCs: decoding, calling, and turning errors into statuses, the same way for every service.

The generated registration code leaves bytes that can't be decoded (invalid UTF-8 in a string, above all) to grpc, which
answers UNKNOWN; here they are INVALID_ARGUMENT, with the field named.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ..core.errors import InvalidArgument
from .errors import Context, abort

_LENGTH_DELIMITED = 2

Request = TypeVar("Request", bound=Message)
Call = Callable[[Request, Context], Awaitable[Message]]


@dataclass(frozen=True, slots=True)
class Service:
    """A gRPC service, ready to be added to a server."""

    name: str
    register: Callable[[grpc.aio.Server], None]


def unary_service(name: str, methods: dict[str, grpc.RpcMethodHandler[Any, Any]]) -> Service:
    """The service `name` with these methods, made by `unary`."""
    handler = grpc.method_handlers_generic_handler(name, methods)
    return Service(name, lambda server: server.add_generic_rpc_handlers((handler,)))


def unary(call: Call[Request], request_type: type[Request]) -> grpc.RpcMethodHandler[Any, Any]:
    """The handler of one method. `call` may raise any of core.errors."""

    def parse(raw: bytes) -> Request | InvalidArgument:
        try:
            return request_type.FromString(raw)
        except DecodeError:
            return InvalidArgument(*_fault(raw, request_type.DESCRIPTOR))

    async def serve(request: Request | InvalidArgument, context: Context) -> Message | None:
        try:
            if isinstance(request, InvalidArgument):
                raise request
            return await call(request, context)
        except Exception as error:
            failure = error
        await abort(context, failure)
        return None

    return grpc.unary_unary_rpc_method_handler(
        serve,
        request_deserializer=parse,
        response_serializer=lambda response: response.SerializeToString(),
    )


def _fault(raw: bytes, descriptor: Any) -> tuple[str, str]:
    """Which field could not be decoded, and why."""
    try:
        path = _bad_string(UnknownFieldSet(Empty.FromString(raw)), descriptor)
    except DecodeError:
        path = None
    if path is None:
        return "", f"the request is not a valid {descriptor.full_name} message"
    return path, "must be valid UTF-8"


def _bad_string(fields: Any, descriptor: Any) -> str | None:
    """The path of the first string in undecoded fields that is not UTF-8."""
    seen: dict[int, int] = {}
    for unknown in fields:
        field = descriptor.fields_by_number.get(unknown.field_number)
        if field is None or unknown.wire_type != _LENGTH_DELIMITED:
            continue
        index = seen[field.number] = seen.get(field.number, -1) + 1
        path = f"{field.name}[{index}]" if field.is_repeated and not _is_map(field) else field.name
        if field.type == FieldDescriptor.TYPE_STRING and not _is_utf8(unknown.data):
            return path
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            inner = _bad_string(UnknownFieldSet(Empty.FromString(unknown.data)), field.message_type)
            if inner is not None:
                return path if _is_map(field) else f"{path}.{inner}"
    return None


def _is_map(field: Any) -> bool:
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
