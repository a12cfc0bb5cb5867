"""Connections of aiokafka under uvloop: one that has just broken is told as a broken one.

aiokafka expects `OSError` of a write into a connection that is gone. With asyncio's transports such bytes are lost in
silence until the reader hears of the end; uvloop's raise `RuntimeError` meanwhile, which nobody behind aiokafka takes
for a broken connection: a broker that ended at the wrong moment took a worker with it. Connections are made in several
places of aiokafka and answer their first requests there, so their class is mended, once, when this is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError, KafkaError


def _telling(write: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that writes to its connection, and tells a broken one."""

    @wraps(write)
    def writing(connection: AIOKafkaConnection, *args: object, **options: object) -> Any:
        writer = connection._writer  # noqa: SLF001  # gone once the connection knows
        try:
            return write(connection, *args, **options)
        except KafkaError:  # a RuntimeError, too
            raise
        except RuntimeError as exc:
            if writer is None or not writer.transport.is_closing():
                raise
            connection.close(reason=CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(
                f"Connection at {connection.host}:{connection.port} broken"
            ) from exc

    return writing


for _name in ("send", "_send_sasl_token"):
    setattr(AIOKafkaConnection, _name, _telling(getattr(AIOKafkaConnection, _name)))
