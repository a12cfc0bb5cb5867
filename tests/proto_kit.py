"""Protobuf message types for tests, made without protoc: a descriptor set, and classes to write with."""

from __future__ import annotations

from google.protobuf import duration_pb2, message_factory, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    EnumValueDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool

KINDS = FieldDescriptorProto
SCALARS = {
    "d": KINDS.TYPE_DOUBLE,
    "f": KINDS.TYPE_FLOAT,
    "i32": KINDS.TYPE_INT32,
    "i64": KINDS.TYPE_INT64,
    "u32": KINDS.TYPE_UINT32,
    "u64": KINDS.TYPE_UINT64,
    "s64": KINDS.TYPE_SINT64,
    "x32": KINDS.TYPE_FIXED32,
    "b": KINDS.TYPE_BOOL,
    "s": KINDS.TYPE_STRING,
    "y": KINDS.TYPE_BYTES,
}
MESSAGE = "shop.Order"
LINE = "shop.Order.Line"
LAST = "shop.Last"


def _field(name: str, number: int, kind: int, type_name: str = "", *, many: bool = False):
    label = KINDS.LABEL_REPEATED if many else KINDS.LABEL_OPTIONAL
    return FieldDescriptorProto(
        name=name, number=number, type=kind, label=label, type_name=type_name or None
    )


def _order() -> DescriptorProto:
    """Scalars, lists, a map, an enumeration, messages inside messages, well-known types."""
    order = DescriptorProto(name="Order")
    message = KINDS.TYPE_MESSAGE
    order.field.extend(
        _field(name, at, kind) for at, (name, kind) in enumerate(SCALARS.items(), 1)
    )
    order.field.extend(
        [
            _field("many", 20, KINDS.TYPE_INT64, many=True),
            _field("lines", 21, message, ".shop.Order.Line", many=True),
            _field("color", 22, KINDS.TYPE_ENUM, ".shop.Color"),
            _field("at", 23, message, ".google.protobuf.Timestamp"),
            _field("took", 24, message, ".google.protobuf.Duration"),
            _field("maybe", 25, message, ".google.protobuf.DoubleValue"),
            _field("free", 26, message, ".google.protobuf.Struct"),
            _field("counts", 27, message, ".shop.Order.CountsEntry", many=True),
            _field("parent", 28, message, ".shop.Order"),
        ]
    )
    has = _field("has", 29, KINDS.TYPE_INT32)  # proto3's "optional"
    has.proto3_optional, has.oneof_index = True, 0
    order.field.append(has)
    order.oneof_decl.add(name="_has")
    counts = order.nested_type.add(name="CountsEntry")  # before Line: an index does not count it
    counts.options.map_entry = True
    counts.field.extend(
        [_field("key", 1, KINDS.TYPE_STRING), _field("value", 2, KINDS.TYPE_INT32)]
    )
    line = order.nested_type.add(name="Line")
    line.field.extend([_field("sku", 1, KINDS.TYPE_STRING), _field("price", 2, KINDS.TYPE_DOUBLE)])
    return order


def files(*, imports: bool = True) -> FileDescriptorSet:
    """Return the file ``shop.proto``; ``imports``: behind those that it imports, as ``--include_imports`` does it."""
    modules = (timestamp_pb2, duration_pb2, wrappers_pb2, struct_pb2)
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(module.DESCRIPTOR.name for module in modules)
    file.enum_type.append(
        EnumDescriptorProto(
            name="Color",
            value=[
                EnumValueDescriptorProto(name="NONE", number=0),
                EnumValueDescriptorProto(name="RED", number=1),
            ],
        )
    )
    file.message_type.append(_order())
    file.message_type.add(name="Last").field.append(_field("a", 1, KINDS.TYPE_INT32))
    found = FileDescriptorSet()
    if imports:
        for module in modules:
            module.DESCRIPTOR.CopyToProto(found.file.add())
    found.file.append(file)
    return found


def message_class(name: str):
    """Return the class of a message type, in a pool of its own."""
    pool = DescriptorPool()
    for file in files().file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
