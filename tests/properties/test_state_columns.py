"""States gathered into columns and split again equal what a loop over rows and elements makes of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.model_config import ControlInput, ControlKind, SequenceBatching, StateConfig
from headrace.schemas.sequence import Flag, SequenceState
from headrace.schemas.signature import Signature
from headrace.schemas.split import split_states
from headrace.schemas.tensor import Datatype, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_kit import config, entry, raw, tensor_config

ROWS = 6
CORRID = {
    Datatype.UINT64: (64, False),
    Datatype.INT64: (64, True),
    Datatype.UINT32: (32, False),
    Datatype.INT32: (32, True),
}


@st.composite
def batches(draw) -> tuple[Batch, list[Datatype]]:
    """A batch of up to six rows, some of them padding, of a model with up to three states of any datatype."""
    datatypes = draw(st.lists(st.sampled_from(tuple(Datatype)), min_size=1, max_size=3))
    shapes = [tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))) for _ in datatypes]
    states = [
        StateConfig(
            f"in{i}", f"out{i}", datatype, draw(st.sampled_from([shape, (-1,) * len(shape)]))
        )
        for i, (datatype, shape) in enumerate(zip(datatypes, shapes, strict=True))
    ]
    batched = draw(st.booleans())
    batching = SequenceBatching(states=tuple(states))
    plain = config(
        [tensor_config("x")], [tensor_config("y")], max_batch_size=ROWS if batched else 0
    )
    present = [True, *draw(st.lists(st.booleans(), max_size=ROWS - 1 if batched else 0))]
    rows = [
        SequenceState(
            i,
            Flag.LIVE,
            0,
            1,
            1,
            tuple(
                draw(raw(datatype, int(np.prod(shape))))
                for datatype, shape in zip(datatypes, shapes, strict=True)
            ),
            tuple(shapes),
        )
        for i in range(len(present))
    ]
    entries = [entry() if here else None for here in draw(st.permutations(present))]
    return Batch(
        Signature(replace(plain, sequence_batching=batching), 1), entries, rows
    ), datatypes


@given(batches())
@settings(deadline=None, max_examples=300)
def test_SB07_gathering_equals_a_loop_over_rows(made: tuple[Batch, list[Datatype]]) -> None:
    """Row by row and bit by bit, BYTES element by element."""
    batch, datatypes = made
    columns = batch.inputs()
    for i, datatype in enumerate(datatypes):
        column = columns[f"in{i}"]
        rows = column if batch.signature.max_batch_size else column[np.newaxis]
        assert len(rows) == len(batch)
        for row, before in zip(rows, batch.states, strict=True):
            alone = to_numpy("alone", datatype, before.shapes[i], before.tensors[i])
            assert row.shape == alone.shape
            if datatype is Datatype.BYTES:
                assert row.tolist() == alone.tolist()
            else:
                assert row.tobytes() == alone.tobytes()


@given(batches(), st.data())
@settings(deadline=None, max_examples=300)
def test_SB07_splitting_undoes_gathering(
    made: tuple[Batch, list[Datatype]], data: st.DataObject
) -> None:
    """A model that gives back what it got, of some rows in any order, leaves each of these states as it was."""
    batch, datatypes = made
    columns = batch.inputs()
    members = None
    batched = batch.signature.max_batch_size > 0
    if batched and data.draw(st.booleans()):
        members = data.draw(st.lists(st.sampled_from(range(len(batch))), unique=True))
    missing = data.draw(st.sets(st.sampled_from(range(len(datatypes)))))
    given_states = {
        f"out{i}": columns[f"in{i}"] if members is None else columns[f"in{i}"][members]
        for i in range(len(datatypes))
        if i not in missing
    }
    found = split_states(batch, Responses({}, members=members, states=given_states))
    covered = range(len(batch)) if members is None else members
    expected = [(batch.states[row].tensors, batch.states[row].shapes) for row in covered]
    assert found == expected
    assert all(type(item) is bytes for tensors, _ in found for item in tensors)


@given(
    st.sampled_from(tuple(CORRID)),
    st.lists(st.none() | st.integers(1, 2**64 - 1), min_size=1, max_size=ROWS),
)
def test_SQ14_ids_are_what_arithmetic_says(datatype: Datatype, ids: list[int | None]) -> None:
    """The id modulo 2^bits, minus 2^bits where that does not fit a signed control."""
    control = ControlInput("CORRID", ControlKind.CORRID, datatype)
    plain = config([tensor_config("x")], [tensor_config("y")])
    of = Signature(replace(plain, sequence_batching=SequenceBatching(controls=(control,))), 1)
    entries = [None if one is None else entry(sequence_id=one) for one in ids]
    if not any(entries):
        entries.append(entry(sequence_id=1))
        ids = [*ids, 1]
    bits, signed = CORRID[datatype]
    expected = [(one or 0) % 2**bits for one in ids]
    if signed:
        expected = [one - 2**bits if one >= 2 ** (bits - 1) else one for one in expected]
    assert Batch(of, entries).inputs()["CORRID"].ravel().tolist() == expected
