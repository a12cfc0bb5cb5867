"""Controls and states of sequence models: what the server feeds, and what it takes back (SEMANTICS §1.7)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.errors import WrongOutput
from headrace.schemas.model_config import ControlInput, ControlKind, SequenceBatching, StateConfig
from headrace.schemas.sequence import Flag, SequenceState
from headrace.schemas.signature import Signature
from headrace.schemas.split import split_states
from headrace.schemas.tensor import Datatype, join_bytes, to_numpy
from wire_kit import config, entry, tensor_config

START = ControlInput("START", ControlKind.START, Datatype.INT32, 0, 1)
END = ControlInput("END", ControlKind.END, Datatype.FP32, -0.5, 2.5)
READY = ControlInput("READY", ControlKind.READY, Datatype.BOOL, 0, 1)
SUM = StateConfig("sum_in", "sum_out", Datatype.INT64, (2,))
WORD = StateConfig("word_in", "word_out", Datatype.BYTES, (-1,))


def signature(
    *, controls: tuple = (), states: tuple = (), max_batch_size: int = 8, **rest
) -> Signature:
    plain = config([tensor_config("x")], [tensor_config("y")], max_batch_size=max_batch_size)
    batching = SequenceBatching(controls=controls, states=states)
    return Signature(replace(plain, sequence_batching=batching, **rest), 1)


def state(*tensors: bytes, shapes: tuple = ()) -> SequenceState:
    return SequenceState(7, Flag.LIVE, 0, 1, 3, tensors, shapes)


def corrid(datatype: Datatype) -> ControlInput:
    return ControlInput("CORRID", ControlKind.CORRID, datatype)


def test_SB05_controls_say_what_the_request_says_in_their_own_values() -> None:
    """SB-06: one value a row; each control has its datatype and its two values."""
    of = signature(controls=(START, END, READY))
    steps = [entry(sequence_start=True), entry(), entry(sequence_end=True)]
    columns = Batch(of, steps, [state()] * 3).inputs()
    assert list(columns) == ["x", "START", "END", "READY"]
    for name, dtype, values in (
        ("START", np.int32, [1, 0, 0]),
        ("END", np.float32, [-0.5, -0.5, 2.5]),
        ("READY", np.bool_, [True, True, True]),
    ):
        assert columns[name].dtype == dtype
        assert columns[name].tolist() == [[value] for value in values]


def test_SQ06_a_sequence_of_one_is_start_and_end() -> None:
    """Both controls are true in the one step."""
    of = signature(controls=(START, END))
    columns = Batch(of, [entry(sequence_start=True, sequence_end=True)], [state()]).inputs()
    assert (columns["START"].tolist(), columns["END"].tolist()) == ([[1]], [[2.5]])


def test_SB06_without_batching_a_control_has_one_value() -> None:
    """Shape [1], not [1,1]."""
    of = signature(controls=(START, corrid(Datatype.UINT64)), max_batch_size=0)
    columns = Batch(of, [entry(sequence_start=True, sequence_id=5)], [state()]).inputs()
    assert (columns["START"].tolist(), columns["CORRID"].tolist()) == ([1], [5])


def test_SQ11_a_padding_row_is_nobody() -> None:
    """Not ready, no start, no end, id 0 or empty; its states are those given for it."""
    controls = (START, END, READY, corrid(Datatype.UINT64))
    of = signature(controls=controls, states=(SUM,))
    one, nobody = np.array([4, 5], "<i8").tobytes(), bytes(16)
    batch = Batch(
        of,
        [None, entry(sequence_start=True, sequence_end=True, sequence_id=9), None],
        [state(data, shapes=((2,),)) for data in (nobody, one, nobody)],
    )
    columns = batch.inputs()
    assert columns["START"].ravel().tolist() == [0, 1, 0]
    assert columns["END"].ravel().tolist() == [-0.5, 2.5, -0.5]
    assert columns["READY"].ravel().tolist() == [False, True, False]
    assert columns["CORRID"].ravel().tolist() == [0, 9, 0]
    assert columns["sum_in"].tolist() == [[0, 0], [4, 5], [0, 0]]
    texts = Batch(signature(controls=(corrid(Datatype.BYTES),)), [None, entry(sequence_id="é")])
    assert texts.inputs()["CORRID"].tolist() == [[b""], ["é".encode()]]


@pytest.mark.parametrize(
    ("datatype", "given", "expected"),
    [
        (Datatype.UINT64, 2**64 - 1, 2**64 - 1),
        (Datatype.INT64, 2**64 - 1, -1),
        (Datatype.INT64, 2**63, -(2**63)),
        (Datatype.UINT32, 2**32 + 7, 7),
        (Datatype.UINT32, 2**64 - 1, 2**32 - 1),
        (Datatype.INT32, 2**32 + 7, 7),
        (Datatype.INT32, 2**31, -(2**31)),
        (Datatype.INT32, 2**64 - 1, -1),
    ],
)
def test_SQ14_an_id_is_truncated_to_what_the_control_holds(datatype, given, expected) -> None:
    """The lower bits, as two's complement where the control has a sign."""
    of = signature(controls=(corrid(datatype),))
    column = Batch(of, [entry(sequence_id=given)], [state()]).inputs()["CORRID"]
    assert column.dtype == datatype.numpy
    assert column.tolist() == [[expected]]


def test_SB07_states_come_in_by_row_and_in_their_shapes() -> None:
    """Numbers as a view of the joined bytes, strings as objects."""
    of = signature(states=(SUM, WORD))
    rows = [
        state(
            np.array([i, -i], "<i8").tobytes(), join_bytes([b"a", b"b" * i]), shapes=((2,), (2,))
        )
        for i in range(3)
    ]
    columns = Batch(of, [entry() for _ in rows], rows).inputs()
    assert columns["sum_in"].tolist() == [[0, 0], [1, -1], [2, -2]]
    assert columns["word_in"].tolist() == [[b"a", b""], [b"a", b"b"], [b"a", b"bb"]]


def test_SB07_without_batching_a_state_has_no_batch_axis() -> None:
    """In and out."""
    of = signature(states=(SUM,), max_batch_size=0)
    batch = Batch(of, [entry()], [state(bytes(16), shapes=((2,),))])
    assert batch.inputs()["sum_in"].tolist() == [0, 0]
    made = np.array([3, 4])
    assert split_states(batch, Responses({}, states={"sum_out": made})) == [
        ((made.tobytes(),), ((2,),))
    ]


def test_states_are_split_by_row_and_copied() -> None:
    """What a sequence keeps is its own row, and nothing that the model's array may become later."""
    of = signature(states=(SUM, WORD))
    batch = Batch(of, [entry(), None, entry()], [state()] * 3)
    sums = np.arange(6, dtype="<i8").reshape(3, 2)
    words = np.array([["a"], ["bc"], [b""]], dtype=object)
    found = split_states(batch, Responses({}, states={"word_out": words, "sum_out": sums}))
    sums[:] = -1
    for i, ((total, word), shapes) in enumerate(found):
        assert type(total) is bytes
        assert total == np.array([2 * i, 2 * i + 1], "<i8").tobytes()
        assert word == join_bytes([(b"a", b"bc", b"")[i]])
        assert shapes == ((2,), (1,))
    assert len({id(shapes) for _, shapes in found}) == 1


def test_a_response_of_some_members_covers_their_rows() -> None:
    """The columns have as many rows as there are members."""
    of = signature(states=(SUM,))
    batch = Batch(of, [entry(), entry(), entry()], [state()] * 3)
    column = np.array([[1, 1], [2, 2]])
    responses = Responses({}, members=[0, 2], states={"sum_out": column})
    assert [tensors for tensors, _ in split_states(batch, responses)] == [
        (row.tobytes(),) for row in column
    ]
    assert split_states(batch, Responses({}, members=[])) == []


def test_SB10_a_state_that_is_not_given_stays() -> None:
    """Each by itself: the other one changes."""
    of = signature(states=(SUM, WORD))
    rows = [
        state(bytes([i] * 16), join_bytes([b"w" * i] * i), shapes=((2,), (i,))) for i in range(3)
    ]
    batch = Batch(of, [entry() for _ in rows], rows)
    nothing = split_states(batch, Responses({}))
    assert nothing == [(row.tensors, row.shapes) for row in rows]
    changed = np.full((3, 2), 8)
    some = split_states(batch, Responses({}, states={"sum_out": changed}))
    assert some == [
        ((changed[0].tobytes(), row.tensors[1]), ((2,), row.shapes[1])) for row in rows
    ]
    last = split_states(batch, Responses({}, members=[2], states={"sum_out": changed[:1]}))
    assert last == some[2:]


def test_SB09_an_undeclared_state_is_refused_in_tritons_words() -> None:
    """Another text where the model has no states at all."""
    given = Responses({}, states={"sum_in": np.zeros((1, 2), "<i8")})
    with pytest.raises(WrongOutput, match="state 'sum_in' is not a valid state name"):
        split_states(Batch(signature(states=(SUM,)), [entry()], [state()]), given)
    with pytest.raises(WrongOutput, match=r"unable to add state 'sum_in'.*model 'm'"):
        split_states(Batch(signature(), [entry()], [state()]), given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.zeros((2, 2), "<i4"), ["int32", "INT64"]),
        (np.zeros((3, 2), "<i8"), ["[3, 2]", "2 rows"]),
        (np.zeros((), "<i8"), ["[]", "2 rows"]),
        (np.zeros((2, 3), "<i8"), ["[3]", "[2]"]),
        (np.zeros((2, 2, 1), "<i8"), ["[2, 1]", "[2]"]),
    ],
)
def test_B36_a_state_that_does_not_fit_is_a_wrong_output(given, words) -> None:
    """Datatype, rows, dims; the sentence names the state."""
    batch = Batch(signature(states=(SUM,)), [entry(), entry()], [state()] * 2)
    with pytest.raises(WrongOutput) as caught:
        split_states(batch, Responses({}, states={"sum_out": given}))
    for word in ("'sum_out'", *words):
        assert word in caught.value.detail


def test_an_open_dim_may_grow_from_step_to_step() -> None:
    """The new shape is kept with the bytes, and feeds the next step."""
    of = signature(states=(WORD,))
    batch = Batch(of, [entry()], [state(join_bytes([b"a"]), shapes=((1,),))])
    words = np.array([[b"a", b"b"]], dtype=object)
    ((tensors, shapes),) = split_states(batch, Responses({}, states={"word_out": words}))
    assert shapes == ((2,),)
    following = Batch(of, [entry()], [state(*tensors, shapes=shapes)])
    assert following.inputs()["word_in"].tolist() == [[b"a", b"b"]]


def test_an_empty_state_is_kept_as_nothing() -> None:
    """A state whose open dim is 0 has no bytes."""
    of = signature(states=(StateConfig("a", "b", Datatype.FP32, (-1,)),))
    batch = Batch(of, [entry(), entry()], [state(b"", shapes=((0,),))] * 2)
    assert batch.inputs()["a"].shape == (2, 0)
    found = split_states(batch, Responses({}, states={"b": np.zeros((2, 0), np.float32)}))
    assert found == [((b"",), ((0,),))] * 2


def test_a_single_row_is_not_copied_on_its_way_in() -> None:
    """Its state is a view of the bytes that the sequence has."""
    held = np.array([4, 5], "<i8").tobytes()
    batch = Batch(signature(states=(SUM,)), [entry()], [state(held, shapes=((2,),))])
    column = batch.inputs()["sum_in"]
    view = to_numpy("held", Datatype.INT64, (2,), held)
    assert column.__array_interface__["data"][0] == view.__array_interface__["data"][0]
