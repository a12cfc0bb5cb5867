"""Asks a model by a record with confluent-kafka, and nothing of Headrace: python examples/confluent_client.py."""

import json
import os
import uuid

from confluent_kafka import Consumer, Producer, TopicPartition

kafka = {"bootstrap.servers": os.environ.get("HEADRACE_BOOTSTRAP_SERVERS", "127.0.0.1:9092")}
# librdkafka hashes keys by CRC32; Java, Go and Headrace itself use murmur2. Alone on a topic that does no harm; beside
# another client the steps of a sequence would lie on two partitions.
producer = Producer({**kafka, "partitioner": "murmur2_random"})

# Reads the results from now on, in no group that others would share.
consumer = Consumer({**kafka, "group.id": "example", "enable.auto.commit": False})
found = consumer.list_topics("headrace.echo.results", timeout=10).topics["headrace.echo.results"]
ends = []
for number in found.partitions:
    place = TopicPartition("headrace.echo.results", number)
    place.offset = consumer.get_watermark_offsets(place, timeout=10)[1]
    ends.append(place)
consumer.assign(ends)

request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
own_id = uuid.uuid4().hex
producer.produce(
    "headrace.echo.requests",
    json.dumps(request).encode(),
    headers={"content-type": "application/json", "id": own_id},
)
producer.flush(10)

while True:
    record = consumer.poll(1)
    if record is None or record.error():
        continue
    headers = dict(record.headers())
    if headers.get("id") == own_id.encode():
        print(headers["status"].decode(), json.loads(record.value())["outputs"][0]["data"])
        break
consumer.close()
