"""Loading: a model's versions as one unit, each with its instances, warmed up (SEMANTICS MC-05, MR-41)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
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
        instances: Of all groups, in order; `renew` puts another one into a dead one's place.
        labels: Output → class labels (SEMANTICS MR-26), for classification (CL-04).
        make: Makes the instance of a number and warms it up.
        closing: Closes instances, then the model.
        initial_state: What the states of a sequence are at START (SEMANTICS SB-08): raw little-endian tensors of one
            item, one per declared state in order, and their shapes, the same tuples for all sequences.
    """

    version: int
    config: ModelConfig
    signature: Signature
    model: Model
    instances: list[Instance]
    labels: Mapping[str, tuple[str, ...]]
    make: Callable[[int], Instance]
    closing: ExitStack
    initial_state: tuple[tuple[bytes, ...], tuple[Shape, ...]] = ((), ())

    def healthy(self) -> bool:
        """Whether every instance can execute (SEMANTICS SV-04)."""
        return all(instance.healthy() for instance in self.instances)

    def renew(self, number: int, *, closes: bool) -> Instance:
        """Put a new instance into the place of one that died or hangs, made and warmed up as at load; blocking.

        Args:
            number: Which.
            closes: Close the old one before: no thread is in it. Else whoever is left in it closes it.

        Raises:
            ConfigError: It cannot be made now.
        """
        if closes:
            with suppress(Exception):  # it is broken: what it still holds is the new one's trouble
                self.instances[number].close()
        self.instances[number] = found = self.make(number)
        return found

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
    places = list(placements(config))
    instances: list[Instance] = []
    with located(str(path), prepared.backend.name), ExitStack() as undo:
        model = prepared.backend.load(config, path)
        undo.callback(model.close)

        def make(number: int) -> Instance:
            instance = model.instance(*places[number])
            try:
                run_samples(samples, instance, file=prepared.file)
            except BaseException:
                instance.close()
                raise
            return instance

        undo.callback(_close, instances)
        for number in range(len(places)):
            instances.append(make(number))  # noqa: PERF401  # those made so far are closed if one fails
        return LoadedVersion(
            version=version,
            config=config,
            signature=signature,
            model=model,
            instances=instances,
            labels=prepared.labels,
            make=make,
            closing=undo.pop_all(),
            initial_state=prepared.initial_state,
        )


def _close(instances: list[Instance]) -> None:
    """Close those that stand in their places now, the last first."""
    with ExitStack() as closing:
        for instance in instances:
            closing.callback(instance.close)
