"""How runtimes say that memory was short; asked by their adapters, and of what a plug-in did not translate."""

from __future__ import annotations

WORDS = (
    # ONNX Runtime's arenas, on the host and on CUDA.
    "failed to allocate",
    "is smaller than requested bytes",
    # C++ and the operating system.
    "bad_alloc",
    "bad allocation",
    "not enough memory",
    "cannot allocate memory",
    # CUDA: the runtime, cuBLAS and cuDNN, TensorRT; and PyTorch on it.
    "out of memory",
    "out_of_memory",
    "outofmemory",
    "alloc_failed",
    "could not be allocated",
    # PyTorch on the host.
    "can't allocate memory",
)
"""Lower-case fragments of their texts."""

CLASS = "OutOfMemoryError"
"""Name of PyTorch's own exception, found without importing it."""


def is_out_of_memory(exc: BaseException) -> bool:
    """Tell whether a foreign exception means that memory was short: by its class, else by its text."""
    if isinstance(exc, MemoryError) or any(kind.__name__ == CLASS for kind in type(exc).__mro__):
        return True
    text = str(exc).lower()
    return any(word in text for word in WORDS)
