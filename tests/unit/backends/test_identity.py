"""The identity backend's script: each parameter does what it says, to the request that it means."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from backend_kit import CPU, batch_of, completed, parsed, run, run_one, texts
from headrace.backends.backend import find_backend
from headrace.backends.identity import IdentityBackend, IdentityInstance, IdentityModel
from headrace.schemas.batch import Batch
from headrace.schemas.errors import (
    BackendError,
    BackendUnavailable,
    ConfigError,
    OutOfMemory,
    Retriable,
    WrongOutput,
)
from headrace.schemas.model_config import ModelConfig
from headrace.schemas.split import split_output

NOWHERE = Path("models/echo/1")
ECHO = """
max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_INT32 dims: [2] }]
output [{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [2] }]
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"


def load(text: str = ECHO, **parameters: str) -> tuple[ModelConfig, IdentityModel]:
    script = " ".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in parameters.items()
    )
    backend = IdentityBackend()
    config = completed(backend, NOWHERE, f"{text} {script}")
    return config, backend.load(config, NOWHERE)


def ready(text: str = ECHO, **parameters: str) -> tuple[ModelConfig, IdentityInstance]:
    config, model = load(text, **parameters)
    return config, model.instance("echo_0_0", CPU)


def requests(config: ModelConfig, *values: int) -> Batch:
    return batch_of(config, *({"INPUT0": np.array([[v, -v]], dtype="<i4")} for v in values))


def test_it_is_found_by_its_entry_point() -> None:
    assert isinstance(find_backend("identity"), IdentityBackend)


def test_it_remembers_what_it_executed() -> None:
    """Rows per execution, over all instances."""
    config, model = load()
    first, second = model.instance("echo_0_0", CPU), model.instance("echo_0_1", CPU)
    run(first, requests(config, 1, 2, 3))
    run(second, requests(config, 1))
    run(first, batch_of(config, {"INPUT0": np.zeros((5, 2), "<i4")}))
    assert list(model.executions) == [3, 1, 5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_batch_size: 8", ["input", "expected input and output to be listed"]),
        (ECHO.split("output", maxsplit=1)[0], ["output", "to be listed"]),
        (ECHO.replace("OUTPUT0", "O").replace("dims: [2] }]\n", "dims: [2] }]", 1), []),
    ],
)
def test_tensors_must_be_listed(text, words) -> None:
    """There is no model file that could complete them; names are free."""
    if not words:
        assert IdentityBackend().complete(parsed(text), NOWHERE).outputs[0].name == "O"
        return
    with pytest.raises(ConfigError) as caught:
        IdentityBackend().complete(parsed(text), NOWHERE)
    for word in (str(NOWHERE), *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("TYPE_INT32 dims: [2] }]\n", "TYPE_INT64 dims: [2] }]\n", ["data_type", "INT32"]),
        ("dims: [2] }]\n", "dims: [3] }]\n", ["output.OUTPUT0.dims = [3]", "expected [2]"]),
    ],
)
def test_an_output_that_is_no_echo_is_refused(old, new, words) -> None:
    text = ECHO[: ECHO.index("output")] + ECHO[ECHO.index("output") :].replace(old, new)
    with pytest.raises(ConfigError) as caught:
        IdentityBackend().complete(parsed(text), NOWHERE)
    for word in words:
        assert word in str(caught.value)


def test_execute_delay_ms_holds_each_execution(monkeypatch) -> None:
    """The instance waits, without the interpreter's lock, for as long as it was told."""
    config, instance = ready(execute_delay_ms="1500")
    waited: list[float] = []
    monkeypatch.setattr(instance, "_pause", type("Pause", (), {"wait": waited.append}))
    run(instance, requests(config, 1))
    assert waited == [1.5]


def test_fail_times_fails_the_first_executions_of_the_model() -> None:
    config, model = load(fail_times="2")
    first, second = model.instance("echo_0_0", CPU), model.instance("echo_0_1", CPU)
    for instance in (first, second):
        with pytest.raises(BackendError, match="fail_times"):
            run(instance, requests(config, 1))
    assert run_one(first, requests(config, 1))["OUTPUT0"].tolist() == [[1, -1]]


def test_fail_if_fails_a_batch_that_holds_the_culprit() -> None:
    """Any row of any request counts; only the first element of a row does."""
    config, instance = ready(fail_if="INPUT0=13")
    with pytest.raises(BackendError, match="INPUT0=13"):
        run(instance, requests(config, 1, 13, 2))
    with pytest.raises(BackendError):
        run(instance, batch_of(config, {"INPUT0": np.array([[1, 1], [13, 1]], "<i4")}))
    assert run(instance, requests(config, 1, 2, -13))


def test_error_if_gives_the_culprit_an_error_of_its_own() -> None:
    """DB-30, PY-02: its rows stay in the columns, its neighbours are served."""
    config, instance = ready(error_if="13")
    (responses,) = run(instance, requests(config, 1, 13, 2))
    assert list(responses.errors) == [1]
    assert isinstance(responses.errors[1], BackendError)
    assert responses.outputs["OUTPUT0"][:, 0].tolist() == [1, 13, 2]


def test_conditions_read_BYTES_as_text() -> None:
    text = ECHO.replace("TYPE_INT32 dims: [2]", "TYPE_STRING dims: [1]")
    config, instance = ready(text, error_if="INPUT0=bad=1")
    batch = batch_of(
        config, *({"INPUT0": texts(item).reshape(1, 1)} for item in (b"ok", b"bad=1", b"bad"))
    )
    (responses,) = run(instance, batch)
    assert list(responses.errors) == [1]


def test_B80_a_batch_above_the_limit_runs_out_of_memory() -> None:
    config, instance = ready(out_of_memory_above_rows="2")
    assert run(instance, requests(config, 1, 2))
    with pytest.raises(OutOfMemory, match="3 rows are above 2"):
        run(instance, requests(config, 1, 2, 3))


def test_B80_memory_is_short_until_a_file_appears(tmp_path) -> None:
    config, instance = ready(
        out_of_memory_above_rows="0", out_of_memory_until_file=str(tmp_path / "mended")
    )
    with pytest.raises(OutOfMemory):
        run(instance, requests(config, 1))
    (tmp_path / "mended").touch()
    assert run(instance, requests(config, 1))


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("error", BackendError),
        ("retriable", Retriable),
        ("unavailable", BackendUnavailable),
        ("death", SystemExit),
    ],
)
def test_fail_as_says_how_a_failure_looks(how, kind) -> None:
    config, instance = ready(fail_if="7", fail_as=how)
    with pytest.raises(kind, match="scripted failure: 7 in the batch") as caught:
        run(instance, requests(config, 6, 7))
    assert type(caught.value) is kind
    assert run(instance, requests(config, 6))


@pytest.mark.parametrize(("delta", "rows"), [("-1", 2), ("2", 5), ("-9", 0)])
def test_B36_output_rows_may_be_too_few_or_too_many(delta, rows) -> None:
    config, instance = ready(output_rows=delta)
    batch = requests(config, 1, 2, 3)
    outputs = run_one(instance, batch)
    assert outputs["OUTPUT0"].shape == (rows, 2)
    with pytest.raises(WrongOutput):
        split_output(batch, batch.signature.outputs[0], outputs["OUTPUT0"])


def test_B36_an_output_may_be_a_scalar() -> None:
    config, instance = ready(output_rows="scalar")
    batch = requests(config, 1, 2)
    outputs = run_one(instance, batch)
    assert outputs["OUTPUT0"].shape == ()
    with pytest.raises(WrongOutput):
        split_output(batch, batch.signature.outputs[0], outputs["OUTPUT0"])


def test_DC01_responses_are_emitted_to_all_and_the_last_is_final() -> None:
    config, instance = ready(ECHO + DECOUPLED, responses="3")
    emitted = run(instance, requests(config, 1, 2))
    assert [(list(r.members or ()), r.final) for r in emitted] == [
        ([0, 1], False),
        ([0, 1], False),
        ([0, 1], True),
    ]
    assert all(r.outputs["OUTPUT0"][:, 0].tolist() == [1, 2] for r in emitted)


def test_DC01_an_input_may_say_how_many_responses_it_gets() -> None:
    """As square_int32: n → n responses; none at all for 0."""
    config, instance = ready(ECHO + DECOUPLED, responses="INPUT0")
    emitted = run(instance, requests(config, 2, 0, 1, 3))
    seen: dict[int, list[bool]] = {}
    for responses in emitted:
        for row, member in enumerate(responses.members):
            seen.setdefault(member, []).append(responses.final)
            assert responses.outputs["OUTPUT0"][row, 0] == [2, 0, 1, 3][member]
    assert seen == {0: [False, True], 2: [True], 3: [False, False, True]}


def test_DC02_a_decoupled_model_may_stay_silent() -> None:
    config, instance = ready(ECHO + DECOUPLED, responses="0")
    assert run(instance, requests(config, 1, 2)) == []


def test_DC01_each_gives_a_response_for_every_element_of_the_last_axis() -> None:
    """As Triton's ``repeat``: the element alone, none for an empty input, and the end by itself if so told."""
    text = """
        max_batch_size: 8
        input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }]
        output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }]
    """
    for word, ends in (("false", [False, False, True]), ("true", [False, False, False])):
        config, instance = ready(text + DECOUPLED, responses="each", empty_final=word)
        rows = np.array([[1, 2, 3], [4, 5, 6]], "<f4")
        emitted = run(instance, batch_of(config, {"INPUT0": rows}))
        assert [r.outputs["OUTPUT0"].tolist() for r in emitted] == [
            [[1], [4]],
            [[2], [5]],
            [[3], [6]],
        ]
        assert [r.final for r in emitted] == ends
        assert run(instance, batch_of(config, {"INPUT0": np.zeros((1, 0), "<f4")})) == []


def test_GN05_an_error_in_the_middle_ends_its_request() -> None:
    """``response_error_at`` for all, ``error_if`` for one and at once: nothing follows either."""
    config, instance = ready(
        ECHO + DECOUPLED, responses="3", response_error_at="1", error_if="INPUT0=7"
    )
    emitted = run(instance, requests(config, 1, 7))
    assert [(list(r.members), sorted(r.errors)) for r in emitted] == [([0, 1], [1]), ([0], [0])]


def test_CX01_a_cancelled_request_gets_no_more_responses() -> None:
    """The model looks between two of them."""
    config, instance = ready(ECHO + DECOUPLED, responses="3")
    batch = requests(config, 1, 2)
    seen = []

    def emit(responses) -> None:
        seen.append(list(responses.members))
        batch.entries[len(seen) - 1].is_cancelled = True

    instance.execute(batch, emit)
    assert seen == [[0, 1], [1]]


def test_the_script_may_fail_behind_some_responses() -> None:
    """``response_at``: ``fail_if`` acts there, and not before the execution."""
    config, instance = ready(ECHO + DECOUPLED, responses="3", response_at="2", fail_if="INPUT0=7")
    seen = []
    with pytest.raises(BackendError, match="INPUT0=7"):
        instance.execute(requests(config, 1, 7), seen.append)
    assert len(seen) == 2


def test_block_until_file_waits_for_the_file_or_fails(tmp_path) -> None:
    """Only batches with the culprit wait; the wait is bounded."""
    gate = tmp_path / "gate"
    config, instance = ready(block_until_file=str(gate), block_if="INPUT0=7", block_limit_ms="1")
    assert run(instance, requests(config, 1))
    with pytest.raises(BackendError, match="did not appear within 1 ms"):
        run(instance, requests(config, 7))
    gate.touch()
    assert run(instance, requests(config, 7))


def test_healthy_executions_bounds_health() -> None:
    config, instance = ready(healthy_executions="2")
    run(instance, requests(config, 1))
    assert instance.healthy()
    run(instance, requests(config, 1))
    assert not instance.healthy()


@pytest.mark.parametrize(("word", "expected"), [("true", True), ("false", False)])
def test_repeatable_is_what_the_parameter_says(word, expected) -> None:
    assert load(repeatable=word)[1].repeatable is expected
    assert load()[1].repeatable


def test_fail_load_fails_the_load_with_its_sentence() -> None:
    with pytest.raises(ConfigError, match="no such weights"):
        load(fail_load="no such weights")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("execute_delay", "1", ["did you mean 'execute_delay_ms'"]),
        ("execute_delay_ms", "-1", ["an integer from 0 to 600000"]),
        ("fail_times", "some", ["an integer from 0 to"]),
        ("fail_if", "X=1", ["INPUT=VALUE", "INPUT0"]),
        ("output_rows", "few", ["scalar"]),
        ("responses", "2", ["decoupled"]),
        ("response_delay_ms", "2", ["decoupled"]),
        ("repeatable", "yes", ["true or false"]),
    ],
)
def test_a_bad_parameter_is_named_with_what_was_expected(key, value, words) -> None:
    with pytest.raises(ConfigError) as caught:
        load(**{key: value})
    for word in (f"parameters.{key}", *words):
        assert word in str(caught.value)


def test_responses_must_be_a_number_or_an_input() -> None:
    with pytest.raises(ConfigError, match="the name of an input, or each"):
        load(ECHO + DECOUPLED, responses="INPUT9")


def test_MR25_helpers_of_a_ragged_batch_may_be_echoed() -> None:
    """§1.4: an output after the inputs' echoes shows what the model was given as a helper."""
    text = """
        max_batch_size: 4
        input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: true }]
        batch_input [{ kind: BATCH_ELEMENT_COUNT target_name: "COUNT"
                       data_type: TYPE_INT32 source_input: "INPUT0" }]
        output [
          { name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] },
          { name: "OUTPUT1" data_type: TYPE_INT32 dims: [1] reshape { shape: [] } }
        ]
        batch_output [{ target_name: "OUTPUT0" kind: BATCH_SCATTER_WITH_INPUT_SHAPE
                        source_input: "INPUT0" }]
    """
    config, instance = ready(text)
    parts = [np.arange(n, dtype="<f4").reshape(1, n) for n in (3, 4, 5)]
    batch = batch_of(config, *({"INPUT0": part} for part in parts))
    outputs = run_one(instance, batch)
    assert outputs["OUTPUT1"].tolist() == [3, 4, 5]
    split = split_output(batch, batch.signature.outputs[0], outputs["OUTPUT0"])
    assert split == [((1, n), part.tobytes()) for n, part in zip((3, 4, 5), parts, strict=True)]


def test_MR24_an_absent_optional_input_has_no_echo() -> None:
    text = """
        input [
          { name: "INPUT0" data_type: TYPE_FP32 dims: [1] },
          { name: "INPUT1" data_type: TYPE_FP32 dims: [1] optional: true }
        ]
        output [
          { name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] },
          { name: "OUTPUT1" data_type: TYPE_FP32 dims: [1] }
        ]
    """
    config, instance = ready(text)
    assert list(run_one(instance, batch_of(config, {"INPUT0": np.ones(1, "<f4")}))) == ["OUTPUT0"]
