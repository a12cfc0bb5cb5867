"""What the cases of the compatibility suite share: requests as JSON and bytes, tensors of tritonclient, waiting."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

WAIT_S = 20.0
POLL_S = 0.05
SETTLE_S = 0.6
"""Three times the interval of the workers' status in this suite."""

LENGTH = "Inference-Header-Content-Length"


def part(name: str, datatype: str, shape: Sequence[int], data: object = None, **parameters):
    """Return one input or output as V2 JSON; ``data`` None is none."""
    made: dict[str, object] = {"name": name, "datatype": datatype, "shape": list(shape)}
    if data is not None:
        made["data"] = data
    if parameters:
        made["parameters"] = parameters
    return made


def wanted(name: str, **parameters):
    """Return one requested output as V2 JSON."""
    return {"name": name, "parameters": parameters} if parameters else {"name": name}


def infer(target, model: str, *inputs, headers: Mapping[str, str] | None = None, **rest):
    """POST an infer request as JSON; ``rest`` are its other keys, such as ``id`` and ``outputs``."""
    return target.post(f"/v2/models/{model}/infer", {"inputs": list(inputs), **rest}, headers)


def mixed(header: object, *tensors: bytes) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a request whose tensors follow its JSON (SEMANTICS BN-01)."""
    text = json.dumps(header).encode()
    return text + b"".join(tensors), {LENGTH: str(len(text))}


def split(answer) -> tuple[dict, bytes]:
    """Return JSON and tensors of a response (SEMANTICS BN-05)."""
    length = int(answer.headers[LENGTH.lower()])
    return json.loads(answer.body[:length]), answer.body[length:]


def pack(*elements: bytes) -> bytes:
    """Return BYTES elements in binary form (SEMANTICS BN-06)."""
    return b"".join(len(element).to_bytes(4, "little") + element for element in elements)


def given(module, name: str, values: np.ndarray, datatype: str, **how):
    """Return an input of one of tritonclient's modules."""
    tensor = module.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values, **how)
    return tensor


SIXTEEN = np.arange(16, dtype=np.int32).reshape(1, 16)
ONES = np.ones((1, 16), dtype=np.int32)


def add_sub(module, one: np.ndarray = SIXTEEN, two: np.ndarray = ONES, datatype: str = "INT32"):
    """Return the inputs of ``simple``."""
    return [given(module, "INPUT0", one, datatype), given(module, "INPUT1", two, datatype)]


def simple_json():
    """Return the inputs of ``simple`` as V2 JSON."""
    return [
        part("INPUT0", "INT32", [1, 16], SIXTEEN.ravel().tolist()),
        part("INPUT1", "INT32", [1, 16], ONES.ravel().tolist()),
    ]


def settled(read: Callable[[], object]) -> object:
    """Return what is read once it stays: what earlier cases asked for may not be counted yet."""
    found = read()
    for _ in range(int(WAIT_S / SETTLE_S)):
        threading.Event().wait(SETTLE_S)
        again = read()
        if again == found:
            return found
        found = again
    raise AssertionError(f"still moving after {WAIT_S} s: {found}")


def eventually(condition: Callable[[], object], what: str) -> object:
    """Ask until something holds; returns what it returned. Counts travel with the workers' next status."""
    for _ in range(int(WAIT_S / POLL_S)):
        found = condition()
        if found:
            return found
        threading.Event().wait(POLL_S)
    raise AssertionError(f"not within {WAIT_S} s: {what}")
