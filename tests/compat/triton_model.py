"""A model of Triton's python backend that plays what Headrace's identity backend and the suite's ONNX files do.

`compat_models` writes one copy into each version's folder of the repository that Triton serves. The parameters of the
configuration say what to play, by the words of the identity backend; ``play: add_sub`` stands for the ONNX file.
"""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Echoes INPUTi as OUTPUTi, unless its parameters say otherwise."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.script = {key: value["string_value"] for key, value in config["parameters"].items()}
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = [tensor["name"] for tensor in config["output"]]
        self.types = {tensor["name"]: tensor["data_type"] for tensor in config["output"]}
        self.is_decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
        self.is_swapped = args["model_version"] == "2"
        self.sums = {}

    def execute(self, requests):
        time.sleep(int(self.script.get("execute_delay_ms", "0")) / 1_000)  # noqa: TID251  # what it plays
        if any(self.is_hit(request, "fail_if") for request in requests):
            raise RuntimeError("scripted failure")
        if self.is_decoupled:
            for request in requests:
                self.stream(request)
            return None
        return [self.answer(request) for request in requests]

    def answer(self, request):
        if self.is_hit(request, "error_if"):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("scripted error"))
        if self.script.get("play") == "add_sub":
            return pb_utils.InferenceResponse(self.add_sub(request))
        if "accumulate" in self.script:
            return pb_utils.InferenceResponse(self.accumulate(request))
        return pb_utils.InferenceResponse(self.echo(request))

    def is_hit(self, request, word):
        if word not in self.script:
            return False
        name, _, value = self.script[word].partition("=")
        first = pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[:1]
        return bool(len(first)) and float(first[0]) == float(value)

    def echo(self, request):
        wanted = request.requested_output_names()
        found = []
        for source, target in zip(self.inputs, self.outputs, strict=True):
            tensor = pb_utils.get_input_tensor_by_name(request, source)
            if tensor is None or target not in wanted:
                continue
            if self.types[target] == "TYPE_BF16":
                found.append(pb_utils.Tensor.from_dlpack(target, tensor.to_dlpack()))
            else:
                found.append(pb_utils.Tensor(target, tensor.as_numpy()))
        return found

    def add_sub(self, request):
        one, two = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs
        )
        made = {self.outputs[0]: one + two, self.outputs[1]: one - two}
        if self.is_swapped:
            made = {self.outputs[0]: one - two, self.outputs[1]: one + two}
        wanted = request.requested_output_names()
        return [pb_utils.Tensor(name, made[name]) for name in self.outputs if name in wanted]

    def accumulate(self, request):
        def value(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

        sums = value(self.inputs[0])
        if value("READY").ravel()[0]:
            key = request.correlation_id()
            if not value("START").ravel()[0]:
                sums = sums + self.sums.get(key, 0)
            self.sums[key] = sums
            if value("END").ravel()[0]:
                del self.sums[key]
        return [pb_utils.Tensor(self.outputs[0], np.asarray(sums, dtype=np.int32))]

    def stream(self, request):
        sender = request.get_response_sender()
        name = self.script["responses"]
        count = int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0])
        error_at = int(self.script.get("response_error_at", "-1"))
        if self.is_hit(request, "error_if"):
            error_at = 0
        for turn in range(count):
            if turn == error_at:
                error = pb_utils.TritonError("scripted error")
                sender.send(pb_utils.InferenceResponse(error=error))
                break
            sender.send(pb_utils.InferenceResponse(self.echo(request)))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
