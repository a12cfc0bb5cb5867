"""The raw form of a request over HTTP: its body is the sole input's data (SEMANTICS BN-07)."""

from __future__ import annotations

from headrace.schemas.errors import InvalidRequest
from headrace.schemas.infer import InferRequest
from headrace.schemas.signature import Signature
from headrace.schemas.tensor import Buffer, Datatype, Tensor, element_count, join_bytes


def raw_request(body: bytes, signature: Signature | None) -> InferRequest:
    """Make a request of the sole input's bytes.

    Raises:
        InvalidRequest: The model has several inputs, or one that the bytes do not fit.
    """
    if signature is None:
        raise InvalidRequest(
            "inference-header-content-length is 0, expected a model whose only input the body is"
        )
    if len(signature.inputs) != 1:
        raise InvalidRequest(
            f"raw request must have exactly 1 input, but model '{signature.model_name}' has "
            f"{len(signature.inputs)} inputs"
        )
    spec = signature.inputs[0]
    dims = list(spec.dims)
    data: Buffer = body
    count = 1
    if spec.datatype is Datatype.BYTES:
        data = join_bytes([body])
    elif len(body) % spec.datatype.size:
        raise InvalidRequest(
            f"raw request has {len(body)} bytes for input '{spec.name}', expected a multiple of "
            f"{spec.datatype.size} for {spec.datatype}"
        )
    else:
        count = len(body) // spec.datatype.size
    if dims.count(-1) > 1:
        raise InvalidRequest(
            f"raw request needs at most one variable dimension, but input '{spec.name}' of model "
            f"'{signature.model_name}' has {spec.wire_dims()}"
        )
    known = element_count([dim for dim in dims if dim >= 0])
    dims = [(count // known if known else 0) if dim < 0 else dim for dim in dims]
    shape = (1, *dims) if spec.batched else tuple(dims)
    return InferRequest((Tensor(spec.name, spec.datatype, shape, data),), binary_data_output=True)
