"""Records, signatures and tensors for the tests of the wire formats."""

from dataclasses import dataclass

import numpy as np
from headrace.schemas.batch import Batch, Entry
from headrace.schemas.codec import encode_request
from headrace.schemas.infer import InferRequest
from headrace.schemas.model_config import (
    BatchInput,
    BatchOutput,
    ModelConfig,
    TensorConfig,
    VersionPolicy,
)
from headrace.schemas.record import AVRO, TP
from headrace.schemas.requests import RequestDecoder
from headrace.schemas.signature import Signature
from headrace.schemas.tensor import Datatype, Tensor, join_bytes
from hypothesis import strategies as st

TP0 = TP("headrace.m.requests", 3)


@dataclass
class Rec:
    """A consumed record."""

    value: bytes | None
    headers: tuple = ()
    offset: int = 0
    topic: str = TP0.topic
    partition: int = TP0.partition
    timestamp: int = 1_700_000_000_000
    key: bytes | None = None


def tensor_config(name, datatype=Datatype.FP32, dims=(4,), **rest):
    return TensorConfig(name, datatype, tuple(dims), **rest)


def config(
    inputs,
    outputs,
    *,
    max_batch_size=8,
    batch_inputs: tuple[BatchInput, ...] = (),
    batch_outputs: tuple[BatchOutput, ...] = (),
    name="m",
):
    """A model configuration as it is after parsing; the protobuf message is nobody's business here."""
    return ModelConfig(
        name=name,
        platform="",
        backend="identity",
        max_batch_size=max_batch_size,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        batch_inputs=batch_inputs,
        batch_outputs=batch_outputs,
        version_policy=VersionPolicy(),
        dynamic_batching=None,
        instance_groups=(),
        default_model_filename="",
        parameters={},
        gpu_accelerators=(),
        cpu_accelerators=(),
        metric_tags={},
        warmup=(),
        decoupled=False,
        message=None,
    )


def signature(inputs=None, outputs=None, version=1, **rest):
    """By default one FP32 input ``x`` of 4 and one FP32 output ``y`` of 2, batched up to 8."""
    return Signature(
        config(inputs or [tensor_config("x")], outputs or [tensor_config("y", dims=(2,))], **rest),
        version,
    )


def fp32(*values, name="x"):
    """One row of FP32."""
    return Tensor.from_numpy(name, np.array([values], dtype=np.float32))


def request(*values, **rest):
    """A request for the default signature."""
    return InferRequest((fp32(*(values or (1, 2, 3, 4))),), **rest)


def decoder(*signatures, **rest):
    given = signatures or (signature(),)
    return RequestDecoder({one.version: one for one in given}, model_name="m", **rest)


def decode_one(record, *signatures):
    """Decode one record that must succeed."""
    decoded = decoder(*signatures).decode(TP0, 1, [record])
    assert not decoded.failures, decoded.failures[0].error
    ((entry,),) = decoded.by_version.values()
    return entry


def fail_one(record, *signatures, **rest):
    """Decode one record that must fail, between two good neighbours that must not."""
    good = encode_request(
        InferRequest(tuple(example(spec) for spec in (signatures or (signature(),))[0].inputs))
    )
    decoded = decoder(*signatures, **rest).decode(TP0, 1, [Rec(*good), record, Rec(*good)])
    assert sum(len(entries) for entries in decoded.by_version.values()) == 2
    (failure,) = decoded.failures
    assert failure.entry.record is record
    return failure


def example(spec, rows=1):
    """Any tensor that fits a spec; -1 becomes 2."""
    dims = tuple(2 if dim < 0 else dim for dim in spec.dims)
    shape = (rows, *dims) if spec.batched else dims
    count = int(np.prod(shape))
    data = (
        join_bytes([b"b"] * count)
        if spec.datatype is Datatype.BYTES
        else bytes(count * spec.datatype.size)
    )
    return Tensor(spec.name, spec.datatype, shape, data)


def entry(rows=1, data=None, shapes=((4,),), **rest):
    """An entry of the default signature, as decoding makes it."""
    made = Entry()
    made.tp, made.epoch, made.record = TP0, 1, Rec(None, offset=rest.pop("offset", 0))
    made.rows, made.shapes = rows, shapes
    made.data = data if data is not None else (bytes(16 * rows),)
    made.content_type = AVRO
    for name, value in rest.items():
        assert hasattr(Entry, name) or name in Entry.__annotations__, name
        setattr(made, name, value)
    return made


def batch(*entries, of=None):
    return Batch(of or signature(), list(entries))


def raw(datatype, count):
    """Raw bytes of so many elements: any bit pattern, so NaN payloads and subnormals too; BOOL 0 or 1."""
    if datatype is Datatype.BYTES:
        items = st.one_of(
            st.binary(max_size=12), st.sampled_from([b"", "é".encode(), b"\x00\xff", b"\x00" * 5])
        )
        return st.lists(items, min_size=count, max_size=count).map(join_bytes)
    if datatype is Datatype.BOOL:
        return st.lists(st.booleans(), min_size=count, max_size=count).map(bytes)
    size = count * datatype.size
    return st.binary(min_size=size, max_size=size)


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
PARAMETERS = st.dictionaries(
    NAMES.filter(
        lambda name: (
            not name.startswith("triton_")
            and name
            not in (
                "sequence_id",
                "sequence_start",
                "sequence_end",
                "priority",
                "timeout",
                "binary_data_output",
                "error",
            )
        )
    ),
    st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.text(st.characters(codec="utf-8"), max_size=8),
    ),
    max_size=3,
)


@st.composite
def tensors(draw, datatypes=tuple(Datatype), name=NAMES):
    datatype = draw(st.sampled_from(datatypes))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    count = int(np.prod(shape))
    return Tensor(draw(name), datatype, shape, draw(raw(datatype, count)))
