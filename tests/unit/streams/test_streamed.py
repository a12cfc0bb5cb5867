"""Replies to a streaming call are handed on in their order, once, and within bounds."""

import asyncio

import pytest
from headrace.schemas.errors import BackendError, Reason, Unavailable
from headrace.streams.streamed import (
    RESPONSE_BYTES,
    STREAMS_AT_THE_BOUND,
    Place,
    ReplyStream,
    StreamRoom,
    place_of,
)

LIMIT = 4 * RESPONSE_BYTES


def stream(room: StreamRoom | None = None) -> ReplyStream[str]:
    return ReplyStream(StreamRoom(LIMIT) if room is None else room)


def hear(replies: ReplyStream[str], index: int, *, final: bool = False, size: int = 0) -> bool:
    """Hand over reply ``index`` as the gateway does; whether it was wanted."""
    place = Place(index, final)
    if not replies.is_wanted(place):
        return False
    replies.hear(f"r{index}", place, size)
    return True


async def read_all(replies: ReplyStream[str]) -> list[str]:
    """Read up to the final reply."""
    found = []
    is_final = False
    while not is_final:
        reply, is_final = await replies.next()
        found.append(reply)
    return found


async def test_DC01_replies_leave_by_their_index_however_they_come():
    """What comes early waits for those before it; behind the final one nothing is heard."""
    replies = stream()
    for index in (2, 0):
        hear(replies, index, final=index == 2)
    assert not replies.done()
    hear(replies, 1)
    assert replies.done()
    assert await read_all(replies) == ["r0", "r1", "r2"]


async def test_P16_replies_that_come_once_more_are_dropped_and_counted():
    """After a takeover the new owner begins with index 0 again, whatever was read meanwhile."""
    replies = stream()
    hear(replies, 0)
    assert (await replies.next())[0] == "r0"
    assert not hear(replies, 0)
    hear(replies, 2)
    assert not hear(replies, 2)
    hear(replies, 1)
    hear(replies, 3, final=True)
    assert await read_all(replies) == ["r1", "r2", "r3"]
    assert replies.repeated == 2


async def test_an_error_comes_behind_what_was_heard_and_the_first_one_stands():
    """SEMANTICS GN-05: responses, then the error that ends the stream."""
    replies = stream()
    hear(replies, 0)
    replies.set_exception(BackendError("it raised"))
    replies.set_exception(BackendError("another"))
    assert (await replies.next()) == ("r0", False)
    with pytest.raises(BackendError, match="it raised"):
        await replies.next()


async def test_an_error_behind_the_final_reply_is_not_heard():
    """A deadline that passes while the reader is at it changes nothing."""
    replies = stream()
    hear(replies, 0, final=True)
    replies.set_exception(BackendError("too late"))
    assert await read_all(replies) == ["r0"]


async def test_a_reader_waits_until_a_reply_comes():
    """Nothing is polled: the reader is woken."""
    replies = stream()
    reader = asyncio.create_task(read_all(replies))
    await asyncio.sleep(0)
    hear(replies, 0)
    await asyncio.sleep(0)
    assert not reader.done()
    hear(replies, 1, final=True)
    assert await reader == ["r0", "r1"]


async def test_a_slow_reader_loses_its_stream_at_the_bound_and_keeps_what_was_heard():
    """``max_stream_bytes``: the responses that fitted come, then the reason; the room is given back."""
    room = StreamRoom(LIMIT)
    replies = stream(room)
    for index in range(5):
        hear(replies, index)
    assert room.used == LIMIT
    for _ in range(4):
        await replies.next()
    with pytest.raises(Unavailable, match="max_stream_bytes") as caught:
        await replies.next()
    assert caught.value.reason is Reason.SLOW_READER
    replies.close()
    assert room.used == 0


async def test_one_response_may_always_wait_however_large():
    """The bound is on what gathers, or a large response could never be had."""
    replies = stream()
    hear(replies, 0, final=True, size=10 * LIMIT)
    assert await read_all(replies) == ["r0"]


async def test_all_streams_together_are_bounded_and_who_is_left_goes_on():
    """A stream that holds something ends where all have no room; closing it makes room for others."""
    room = StreamRoom(LIMIT)
    many = [stream(room) for _ in range(STREAMS_AT_THE_BOUND)]
    for replies in many:
        for index in range(4):
            hear(replies, index)
    late = stream(room)
    hear(late, 0)
    hear(late, 1)
    assert late.done()
    many[0].close()
    other = stream(room)
    hear(other, 0)
    hear(other, 1)
    assert not other.done()


def test_an_answer_without_a_number_is_the_only_one():
    """So are errors of requests that never ran, and answers of models that are not decoupled."""
    assert place_of(()) == (0, True)
    assert place_of((("response-index", b"3"), ("final", b"false"))) == (3, False)
    assert place_of((("response-index", b"x"),)) == (0, True)
