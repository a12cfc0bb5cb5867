#!/bin/sh
# Asks models by records, with kcat: sh examples/kcat.sh
# Its librdkafka hashes keys by CRC32, where Java, Go and Headrace's own clients use murmur2: without the partitioner
# below, the steps of one sequence would lie on two partitions as soon as another client sends some of them.
# kcat 1.7.1 with librdkafka 2.0 (Debian 12) needs an Apache Kafka; it does not understand the embedded broker.
set -e
kafka=${HEADRACE_BOOTSTRAP_SERVERS:-127.0.0.1:9092}
since=$(date +%s%3N)

echo '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}' |
  kcat -b "$kafka" -P -t headrace.echo.requests -X partitioner=murmur2_random \
    -H content-type=application/json -H id=one
kcat -b "$kafka" -C -q -t headrace.echo.results -o "s@$since" -c 1 -f '%h\n%s\n'

# A sequence of one step: its id is the record's key.
echo '{"inputs": [{"name": "x", "datatype": "INT32", "shape": [1, 1], "data": [5]}]}' |
  kcat -b "$kafka" -P -t headrace.total.requests -X partitioner=murmur2_random -k 7 \
    -H content-type=application/json -H sequence-id=7 -H sequence-start=true -H sequence-end=true
kcat -b "$kafka" -C -q -t headrace.total.results -o "s@$since" -c 1 -f '%k %s\n'
