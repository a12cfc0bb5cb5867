#!/bin/sh
# Asks models over HTTP, through a gateway: sh examples/curl.sh
set -e
models=${HEADRACE_URL:-http://127.0.0.1:8000}/v2/models

curl -sf "$models/echo/infer" -d '{
  "id": "one",
  "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]
}'
echo

# A sequence of two steps.
for flag in sequence_start sequence_end; do
  curl -sf "$models/total/infer" -d '{
    "parameters": {"sequence_id": 7, "'$flag'": true},
    "inputs": [{"name": "x", "datatype": "INT32", "shape": [1, 1], "data": [5]}]
  }'
  echo
done

# A decoupled model: an event for each answer.
curl -sfN "$models/each/generate_stream" -d '{"x": [5, 6, 7]}'
