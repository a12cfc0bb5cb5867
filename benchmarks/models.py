"""The network of the workload on disk, as a model repository that the worker, the loop and Triton's like can read."""

from pathlib import Path

from onnx import TensorProto, checker, helper, numpy_helper, save

from benchmarks.workload import INPUT, MAX_BATCH_ROWS, MODEL, OUTPUT, SIZES, weights


def write_onnx(path: Path) -> None:
    """Write the network as an ONNX file with a free batch axis."""
    nodes, constants, value = [], [], INPUT
    layers = list(weights())
    for i, (weight, bias) in enumerate(layers):
        last = i + 1 == len(layers)
        constants.append(numpy_helper.from_array(weight, f"W{i}"))
        constants.append(numpy_helper.from_array(bias, f"B{i}"))
        out = OUTPUT if last else f"z{i}"
        nodes.append(helper.make_node("Gemm", [value, f"W{i}", f"B{i}"], [out]))
        if not last:
            nodes.append(helper.make_node("Relu", [out], [f"a{i}"]))
        value = f"a{i}"
    graph = helper.make_graph(
        nodes,
        MODEL,
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", SIZES[0]])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", SIZES[-1]])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    save(model, str(path))


def configuration() -> str:
    """Return the text of the model's config.pbtxt: one instance, one thread."""
    return f"""name: "{MODEL}"
backend: "onnxruntime"
max_batch_size: {MAX_BATCH_ROWS}
input [{{ name: "{INPUT}", data_type: TYPE_FP32, dims: [{SIZES[0]}] }}]
output [{{ name: "{OUTPUT}", data_type: TYPE_FP32, dims: [{SIZES[-1]}] }}]
dynamic_batching {{ }}
instance_group [{{ kind: KIND_CPU, count: 1 }}]
parameters [
  {{ key: "intra_op_thread_count", value: {{ string_value: "1" }} }},
  {{ key: "inter_op_thread_count", value: {{ string_value: "1" }} }}
]
"""


def write_repository(folder: Path) -> Path:
    """Write a model repository with the network, and return the ONNX file in it."""
    version = folder / MODEL / "1"
    version.mkdir(parents=True)
    (folder / MODEL / "config.pbtxt").write_text(configuration())
    write_onnx(version / "model.onnx")
    return version / "model.onnx"
