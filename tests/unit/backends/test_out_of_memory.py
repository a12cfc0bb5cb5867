"""What runtimes raise when memory is short is known by its class, else by its words; other failures are not."""

from __future__ import annotations

import pytest
from headrace.backends.ort import translate
from headrace.backends.out_of_memory import is_out_of_memory
from headrace.schemas.errors import BackendError, OutOfMemory

TEXTS = (
    (
        "[ONNXRuntimeError] : 1 : FAIL : bfc_arena.cc:376 BFCArena::AllocateRawInternal Failed to allocate memory for "
        "requested buffer of size 8589934592"
    ),
    "bfc_arena.cc:347 BFCArena::AllocateRawInternal Available memory of 1024 is smaller than requested bytes of 4096",
    "CUDA failure 2: out of memory ; GPU=0 ; hostname=h ; expr=cudaMalloc((void**)&p, size);",
    "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; expr=cublasCreate(&handle);",
    "CUDNN failure 4: CUDNN_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.00 GiB",
    (
        "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
        "to allocate 8 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "Requested amount of GPU memory (8 bytes) could not be allocated",
    "Error Code 2: OutOfMemory (no further information)",
)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_B81_the_words_of_runtimes_are_known(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text))
    assert isinstance(translate(RuntimeError(text), "m"), OutOfMemory)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "indices element out of data bounds",
        "CUDA failure 700: an illegal memory access was encountered",
    ],
)
def test_other_failures_are_not(text: str) -> None:
    assert not is_out_of_memory(RuntimeError(text))
    assert type(translate(RuntimeError(text), "m")) is BackendError


def test_an_error_of_the_interpreter_or_of_pytorch_is_known_without_a_text() -> None:
    class OutOfMemoryError(RuntimeError):
        """As torch names it."""

    class Derived(OutOfMemoryError):
        """A kind of it."""

    assert all(is_out_of_memory(error()) for error in (MemoryError, OutOfMemoryError, Derived))
