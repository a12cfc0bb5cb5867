"""Loading: a model's versions as one unit, each with its instances, warmed up (SEMANTICS MC-05, MR-41)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from headrace.backends.backend import Device, Instance, Model
from headrace.repository.prepare import Prepared, located
from headrace.repository.warmup import build_samples, run_samples
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import InstanceKind, ModelConfig
from headrace.schemas.signature import Signature
from headrace.schemas.tensor import Shape

WHOLE_MODEL = 0
"""In a `LoadFailure`: the cause concerns no single version; versions begin at 1."""


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """One version that serves.

    Attributes:
        version: Number.
        config: The model's configuration.
        signature: What it takes and gives.
        model: Weights.
        instances: Of all groups, in order.
        labels: Output → class labels (SEMANTICS MR-26); kept for classification, which nothing offers yet (CL-01).
        closing: Closes instances, then the model.
        initial_state: What the states of a sequence are at START (SEMANTICS SB-08): raw little-endian tensors of one
            item, one per declared state in order, and their shapes, the same tuples for all sequences.
    """

    version: int
    config: ModelConfig
    signature: Signature
    model: Model
    instances: tuple[Instance, ...]
    labels: Mapping[str, tuple[str, ...]]
    closing: ExitStack
    initial_state: tuple[tuple[bytes, ...], tuple[Shape, ...]] = ((), ())

    def healthy(self) -> bool:
        """Whether every instance can execute (SEMANTICS SV-04)."""
        return all(instance.healthy() for instance in self.instances)

    def close(self) -> None:
        """Close the instances, the last made first, then free the weights; nothing may execute any more."""
        self.closing.close()


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One model that serves: all its versions loaded, none failed.

    Attributes:
        config: Complete.
        directory: Model directory.
        versions: Version → loaded version, ascending.
        warnings: What was skipped or is ignored.
    """

    config: ModelConfig
    directory: Path
    versions: Mapping[int, LoadedVersion]
    warnings: tuple[str, ...]

    def close(self) -> None:
        """Close every version, the highest first."""
        with ExitStack() as closing:
            for version in self.versions.values():
                closing.callback(version.close)


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """Why a model is not served.

    Attributes:
        model: Name.
        causes: Version → what is wrong with it; `WHOLE_MODEL` where it is the configuration.
    """

    model: str
    causes: Mapping[int, ConfigError]

    @property
    def text(self) -> str:
        """The sentence that a load answers with (SEMANTICS MC-10)."""
        parts = [
            str(cause)
            if version == WHOLE_MODEL
            else f"version {version} is at UNAVAILABLE state: {cause};"
            for version, cause in self.causes.items()
        ]
        return f"load failed for model '{self.model}': {''.join(parts)}"


def load(prepared: Prepared) -> LoadedModel | LoadFailure:
    """Load all versions of a model, or none (SEMANTICS MC-05).

    Every version is tried, so that the failure names all that is wrong; what did load is closed again.
    """
    versions: dict[int, LoadedVersion] = {}
    causes: dict[int, ConfigError] = {}
    for version in prepared.paths:
        try:
            versions[version] = _load_version(prepared, version)
        except ConfigError as exc:
            causes[version] = exc
    model = LoadedModel(prepared.config, prepared.source.directory, versions, prepared.warnings)
    if causes:
        model.close()
        return LoadFailure(prepared.config.name, causes)
    return model


def placements(config: ModelConfig) -> Iterator[tuple[str, Device]]:
    """Yield name and device of each instance of a model (SEMANTICS MR-30): ``<group>_<n>`` within its group."""
    for group in config.instance_groups:
        on_gpu = group.kind is InstanceKind.KIND_GPU
        number = 0
        for gpu in (group.gpus or (0,)) if on_gpu else (0,):
            for _ in range(group.count):
                yield f"{group.name}_{number}", Device(group.kind, gpu)
                number += 1


def _load_version(prepared: Prepared, version: int) -> LoadedVersion:
    config, path = prepared.config, prepared.paths[version]
    signature = Signature(config, version)
    with located(prepared.file):
        samples = build_samples(prepared, signature)
    with located(str(path), prepared.backend.name), ExitStack() as undo:
        model = prepared.backend.load(config, path)
        undo.callback(model.close)
        instances: list[Instance] = []
        for name, device in placements(config):
            instance = model.instance(name, device)
            undo.callback(instance.close)
            run_samples(samples, instance, file=prepared.file)
            instances.append(instance)
        return LoadedVersion(
            version=version,
            config=config,
            signature=signature,
            model=model,
            instances=tuple(instances),
            labels=prepared.labels,
            closing=undo.pop_all(),
            initial_state=prepared.initial_state,
        )
