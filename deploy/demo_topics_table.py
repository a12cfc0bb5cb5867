"""The topics demo's real input: scikit-learn's table of breast cancer cells, a model that it fits, and their records.

The records are as a hospital might have them, one flat Avro record per row; the second schema knows the hospital, too.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from headrace.schemas.errors import ConfigError
from headrace.schemas.tensor import Array

MODEL = "cells"
TOPIC = "hospital.cells"
RESULTS = "hospital.cells.scored"
HOSPITALS = ("North", "South")
UNKNOWN = "unknown"
"""The default of the field that comes later."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows, and what the estimator says of them.

    Attributes:
        names: Of the columns, as Avro takes them.
        rows: FP64 [rows, columns].
        expected: FP64 [rows, classes]: the estimator's own probabilities.
        labels: Of the classes.
        model: The estimator as ONNX.
    """

    names: Sequence[str]
    rows: Array
    expected: Array
    labels: Sequence[str]
    model: bytes


def fit_table() -> Table:
    """Load the table, fit a classifier to it and export that.

    Raises:
        ConfigError: A package is missing.
    """
    try:
        from skl2onnx import to_onnx  # noqa: PLC0415  # of the demo alone, and slow
        from sklearn.datasets import load_breast_cancer  # noqa: PLC0415
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
        from sklearn.pipeline import make_pipeline  # noqa: PLC0415
        from sklearn.preprocessing import StandardScaler  # noqa: PLC0415
    except ImportError as exc:
        raise ConfigError(
            f"{exc.name} is not installed: pip install 'headrace[demo]'", field="make demo-topics"
        ) from exc
    found = load_breast_cancer()
    estimator = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    estimator.fit(found.data, found.target)
    exported = to_onnx(
        estimator,
        found.data[:1].astype(np.float32),
        options={"zipmap": False},
        target_opset=17,
    )
    return Table(
        names=[name.replace(" ", "_") for name in found.feature_names],
        rows=found.data,
        expected=estimator.predict_proba(found.data),
        labels=[str(name) for name in found.target_names],
        model=exported.SerializeToString(),
    )


def schema_text(table: Table, version: int) -> str:
    """Return the Avro schema of the records: the second one has a field more, with a default."""
    fields = [{"name": "id", "type": "long"}]
    fields += [{"name": name, "type": "double"} for name in table.names]
    if version > 1:
        fields.append({"name": "hospital", "type": "string", "default": UNKNOWN})
    return json.dumps(
        {"type": "record", "name": "Cell", "namespace": "hospital", "fields": fields}, indent=2
    )


def records_text(table: Table, ids: Sequence[int], version: int) -> str:
    """Return records in JSON, one a line; the id's row is the id modulo the rows of the table."""
    lines = []
    for number in ids:
        row = table.rows[number % len(table.rows)]
        record: dict[str, object] = {"id": number}
        record.update(zip(table.names, row.tolist(), strict=True))
        if version > 1:
            record["hospital"] = hospital_of(number)
        lines.append(json.dumps(record))
    return "\n".join(lines) + "\n"


def hospital_of(number: int) -> str:
    """Return the hospital of a record that knows it."""
    return HOSPITALS[number % len(HOSPITALS)]


def mapping_text(table: Table, registry: str) -> str:
    """Return the mapping file: all that somebody has to write who puts the model onto the topic."""
    fields = textwrap.fill(", ".join(f'"{name}"' for name in table.names), 100)
    fields = textwrap.indent(fields, "    ")
    labels = ", ".join(f'"{label}"' for label in table.labels)
    return f"""[source]
topic = "{TOPIC}"
format = "avro"
framing = "confluent"
schema = "cells-v2.avsc"
registry = "{registry}"
offset_reset = "earliest"

[inputs.X]
fields = [
{fields},
]

[results]
topic = "{RESULTS}"
format = "avro"
framing = "confluent"
registry = "{registry}"
pass = ["id", "hospital"]

[results.fields]
probabilities = "probabilities"
diagnosis = {{ output = "probabilities", label = true, labels = [{labels}] }}
"""


def write_files(folder: Path, table: Table, registry: str) -> None:
    """Write a model repository, the mapping and both schemas into a folder."""
    version = folder / "models" / MODEL / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(table.model)
    (folder / "models" / MODEL / "config.pbtxt").write_text(
        'backend: "onnxruntime"\nmax_batch_size: 64\ndynamic_batching {}\n'
    )
    (folder / f"{MODEL}.toml").write_text(mapping_text(table, registry))
    for number in (1, 2):
        (folder / f"cells-v{number}.avsc").write_text(schema_text(table, number))
