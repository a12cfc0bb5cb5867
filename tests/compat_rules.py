"""The rules of the compatibility suite: ids of Triton's behaviours, what each says, why some have no case."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

rule = pytest.mark.rule
"""Names the rules that a case checks, by id."""

differs = pytest.mark.differs
"""Says why Headrace knowingly answers otherwise; the case must fail there, and pass on Triton.

With ``run=False`` it is not tried: where chance decides what comes out.
"""

since = pytest.mark.since
"""Says from which Triton a case holds, as ``(2, 60)``; an older one is passed over."""

NEWER = (2, 60)
"""Stands for "after the 2.51 at hand, by the source of 2.73"."""

SUITE = Path(__file__).parent / "compat"

RULES = {
    "PB-01": "GET /v2: server metadata",
    "PB-02": "GET /v2/health/live and ready: 200 with an empty body",
    "PB-03": "GET …/ready of a model or version: 200, unknown 404",
    "PB-04": "GET /v2/models/{m}[/versions/{v}]: model metadata",
    "PB-05": "POST …/infer, with and without a version",
    "PB-06": "POST …/generate and …/generate_stream",
    "PB-07": "GET …/config, with and without a version",
    "PB-08": "GET /v2/models/stats and …/stats",
    "PB-09": "POST /v2/repository/index",
    "PB-10": "POST /v2/repository/models/{m}/load and /unload",
    "PB-11": "GET and POST of trace settings, global and of a model",
    "PB-12": "GET and POST of /v2/logging",
    "PB-13": "Status, register and unregister of system and CUDA shared memory",
    "PB-14": "GET /metrics on a port of its own",
    "PB-20": "Whole paths only, 404 and 405 with fixed bodies, query strings ignored",
    "PB-21": "Forms with a repository's name answer 501",
    "PB-22": "Restricted API groups: 403 without the header",
    "PB-23": "HTTP listens only once models are loaded",
    "PB-24": "--http-max-input-size on JSON, its expansion, raw bodies and decompressed data",
    "PB-30": 'Errors are {"error": text} as JSON, health is empty',
    "PB-31": "Codes map to 400, 404, 503, 501, 500",
    "PB-32": "Malformed JSON, missing keys and wrong JSON types are 500",
    "PB-33": "Model look-up comes before the body: 404, and 503 where not ready",
    "PB-34": "400 for wrong inputs: count, name, datatype, shape, batch size, byte size",
    "PB-35": "400 for unknown or doubled outputs and inputs",
    "PB-36": "Exactly one source of data per input; leftover and missing bytes",
    "PB-37": "Errors are matched by fragments: some carry a request id prefix",
    "PB-38": "Absurdly nested JSON is an error, and the server survives",
    "PB-40": "Request JSON: id, parameters, inputs, outputs; no outputs means all",
    "PB-41": "data may be flat or nested",
    "PB-42": "Response JSON: id only if given, model_version a string, data flat",
    "PB-43": "Outputs come in the configuration's order when all are wanted",
    "PB-44": "Datatypes and their bytes",
    "PB-45": "JSON forms of datatypes; FP16 and BF16 only in binary",
    "PB-46": "NaN and infinities in JSON",
    "PB-47": "Standard and custom request parameters; triton_ is reserved",
    "PB-48": "--http-header-forward-pattern",
    "PB-49": "A closed connection cancels its request",
    "BN-01": "Inference-Header-Content-Length: JSON first, tensors behind",
    "BN-02": "binary_data_size per input, 0 allowed, mixed with JSON inputs",
    "BN-03": "binary_data asks for a binary output",
    "BN-04": "binary_data_output reaches only outputs that are not listed",
    "BN-05": "Content type and header length of a binary response",
    "BN-06": "Little-endian, row-major, BYTES with lengths",
    "BN-07": "Raw mode: header length 0",
    "BN-08": "gzip and deflate both ways, others 501",
    "CL-01": "classification: value:index[:label], k largest, sorted",
    "CL-02": "classification refused for BYTES, BOOL, FP16 and BF16",
    "CL-03": "classification 0 is off; must be an unsigned integer",
    "CL-04": "Labels from the output's label file; none past its end",
    "CL-05": "classification as BYTES in binary, strings in JSON",
    "CL-06": "Equal values: order unspecified",
    "PB-60": "Server metadata: name, version, extensions",
    "PB-61": "Model metadata: READY versions, platform, tensors with the batch dim",
    "PB-62": "Configuration as protobuf JSON with defaults",
    "PB-63": "Index: name, version, state, reason; ready filter",
    "PB-64": "Load with config and files",
    "PB-65": "Unload with unload_dependents",
    "ST-01": "Shape of statistics",
    "ST-02": "What inference_count, success, execution_count and batch_stats add",
    "ST-03": "queue counts successes, compute those that were no cache hits",
    "ST-04": "Cache hits add to success and cache_hit only",
    "ST-05": "Failures add to fail, not to queue",
    "ST-06": "Unknown model or version: 400",
    "ST-07": "Durations are cumulative",
    "PB-70": "Sequences: sequence_id (number or text), sequence_start, sequence_end",
    "PB-71": "Schedule policy: priority and timeout, where the model allows them",
    "PB-72": "Shared memory: regions, their parameters, their errors",
    "PB-73": "Trace settings: values, levels, null clears",
    "PB-74": "Logging settings: six values, subsets, wrong types",
    "GN-01": "generate: keys are inputs or parameters, also nested; id",
    "GN-02": "generate: shapes from the configuration; mismatch 400",
    "GN-03": "generate: outputs by name, single elements unwrapped",
    "GN-04": "/generate needs exactly one response; no compressed bodies",
    "GN-05": "generate_stream: events; an error first is plain JSON, later an event",
    "GN-06": "generate works for decoupled and normal models; closing cancels",
    "GN-07": "generate: a tensor given twice 400; missing inputs as usual",
    "GR-01": "gRPC: raw or typed contents, responses raw",
    "GR-02": "Stream errors in error_message, or a status with triton_grpc_error",
    "GR-03": "triton_final_response, and the empty final message on request",
    "GR-04": "ModelInfer on a decoupled model is UNIMPLEMENTED",
    "GR-05": "Cancelling an RPC or stream cancels its requests",
    "TC-01": "tritonclient asks in binary by default",
    "TC-02": "tritonclient sends all three sequence parameters",
    "TC-03": "is_live and is_ready test for 200",
    "TC-04": "Error text and status of InferenceServerException",
    "TC-05": "Responses are parsed by Inference-Header-Content-Length",
    "TC-06": "Index has an empty body; load and unload have parameters",
    "TC-07": "The client itself refuses reserved parameters",
    "TC-08": "async_infer is a pool; tritonclient.http.aio",
    "SV-01": 'live: 200, 503 with "Server exiting" during the stop',
    "SV-02": "ready: every version of every model; 400 empty otherwise",
    "SV-03": "Loading flips readiness in explicit mode; inference goes on",
    "SV-04": "Readiness asks the backend of each version",
    "SV-05": "model ready: 200, 404, 400, 503",
    "SV-06": "model ready without a version: the latest READY one decides",
}
"""Id → what the rule says, in short. SEMANTICS §2 and §4.1."""

REASONS = {
    "PB-48": "No model at hand answers with its request's parameters, so that a client could see them.",
    "PB-64": "Models are loaded at the start only; loading at run time is still to come (MC-01's refusal is a case).",
    "PB-65": "As PB-64.",
    "SV-04": "From a later Triton on. An unhealthy instance is replaced here, and a worker that cannot do so ends: no "
    "client finds such a version for long. What the instance port says is tested there.",
    "SV-03": "As PB-64; that inference goes on while the server is not ready is a case of SV-02.",
    "ST-04": "There is no response cache yet.",
    "CL-06": "The order is unspecified, so that no order can be wrong.",
    "ST-07": "A property of what is read twice, seen in ST-02's cases: counts and times only grow.",
    "TC-07": "Refused by the client itself: no server sees it.",
}
"""Id → why the suite has no case for it."""


def cited() -> set[str]:
    """Return the ids that the suite's modules name in their ``rule`` marks."""
    found: set[str] = set()
    for path in SUITE.glob("test_*.py"):
        for marks in re.findall(r"\brule\(([^)]*)\)", path.read_text()):
            found.update(re.findall(r'"([A-Z]+-\d+)"', marks))
    return found
