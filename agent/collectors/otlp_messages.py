"""OTLP's messages for traces as they are read here: the same bytes, with other types where that is safer or faster.

* `Span` has what a part may need and no more. Its attributes are a map, which on the wire is the same as a list of keys
  and values; so those that matter are looked up, and the others are never looked at.
* `Status` and `RetryInfo` are google.rpc's, for answers.

The numbers of the fields are those of opentelemetry-proto and of googleapis.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "bytes": _FIELD.TYPE_BYTES,
    "string": _FIELD.TYPE_STRING,
    "bool": _FIELD.TYPE_BOOL,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "fixed64": _FIELD.TYPE_FIXED64,
    "double": _FIELD.TYPE_DOUBLE,
}

_MESSAGES = {
    "AnyValue": {
        "string_value": ("either", "string", 1),
        "bool_value": ("either", "bool", 2),
        "int_value": ("either", "int64", 3),
        "double_value": ("either", "double", 4),
        "array_value": ("either", "ArrayValue", 5),
    },
    "ArrayValue": {"values": ("many", "AnyValue", 1)},
    "Event": {"time_unix_nano": ("one", "fixed64", 1), "name": ("one", "string", 2)},
    "SpanStatus": {"code": ("one", "int32", 3)},
    "Span": {
        "trace_id": ("one", "bytes", 1),
        "span_id": ("one", "bytes", 2),
        "parent_span_id": ("one", "bytes", 4),
        "name": ("one", "string", 5),
        "start_time_unix_nano": ("one", "fixed64", 7),
        "end_time_unix_nano": ("one", "fixed64", 8),
        "attributes": ("map", "AnyValue", 9),
        "events": ("many", "Event", 11),
        "status": ("one", "SpanStatus", 15),
    },
    "Duration": {"seconds": ("one", "int64", 1)},
    "RetryInfo": {"retry_delay": ("one", "Duration", 1)},
    "Detail": {"type_url": ("one", "string", 1), "value": ("one", "bytes", 2)},
    "Status": {"code": ("one", "int32", 1), "message": ("one", "string", 2), "details": ("many", "Detail", 3)},
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="kvitals/otlp.proto", package="kvitals", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (times, type_, number) in fields.items():
            _add(message, field, times, type_, number)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"kvitals.{name}")) for name in _MESSAGES}


def _add(message: Any, name: str, times: str, type_: str, number: int) -> None:
    field = message.field.add(name=name, number=number)
    field.label = _FIELD.LABEL_REPEATED if times in ("many", "map") else _FIELD.LABEL_OPTIONAL
    field.type = _TYPES.get(type_, _FIELD.TYPE_MESSAGE)
    if times == "map":
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _add(entry, "key", "one", "string", 1)
        _add(entry, "value", "one", type_, 2)
        field.type_name = f".kvitals.{message.name}.{entry.name}"
    elif type_ not in _TYPES:
        field.type_name = f".kvitals.{type_}"
    if times == "either":
        if not message.oneof_decl:
            message.oneof_decl.add(name="value")
        field.oneof_index = 0


_made = _classes()
Span, AnyValue, ArrayValue, Event, SpanStatus = (
    _made[name] for name in ("Span", "AnyValue", "ArrayValue", "Event", "SpanStatus")
)
Status, RetryInfo, Duration = _made["Status"], _made["RetryInfo"], _made["Duration"]
