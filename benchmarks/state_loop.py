"""What a takeover is compared with: a bare ``getmany`` loop over a state topic, which decodes and keeps nothing.

Prints how long it took from the first poll to the last record that was there at the start, and what it read, as JSON.
"""

from __future__ import annotations

import argparse
import json
import time

import uvloop
from aiokafka import AIOKafkaConsumer, TopicPartition


async def read(bootstrap: str, topic: str) -> dict[str, float]:
    """Read partition 0 to its end."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        end = (await consumer.end_offsets([tp]))[tp]
        records = size = 0
        began_s = time.monotonic()
        await consumer.seek_to_beginning(tp)
        while await consumer.position(tp) < end:
            for found in (await consumer.getmany(timeout_ms=1000)).values():
                records += len(found)
                size += sum([len(record.value or b"") for record in found])
        return {"seconds": time.monotonic() - began_s, "records": records, "bytes": size}
    finally:
        await consumer.stop()


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    args = parser.parse_args()
    print(json.dumps(uvloop.run(read(args.bootstrap, args.topic))))


if __name__ == "__main__":
    main()
