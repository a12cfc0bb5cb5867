"""The repositories of one process: found, loaded in parallel, indexed and closed.

Control mode ``none`` (SEMANTICS MC-01): everything is loaded at start, and later changes on disk are ignored.
Failures are collected, never raised: one model that does not load keeps no other from serving (MC-04 decides
about ending the process, in `headrace.deploy`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from headrace.backends.backend import Backend, find_backend
from headrace.repository.index import DUPLICATE, UNLOADED, Index, State, VersionState
from headrace.repository.layout import ModelSource, scan
from headrace.repository.models import WHOLE_MODEL, LoadedModel, LoadFailure, load
from headrace.repository.prepare import Backends, LoadSettings, VersionError, prepare
from headrace.schemas.errors import ConfigError

logger = logging.getLogger(__name__)


class Repository:
    """Every model of this process.

    Attributes:
        index: States of all known versions.
        models: Loaded models by name.
        failures: Models that are not served, by name, with the causes.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        settings: LoadSettings | None = None,
        *,
        find: Callable[[str], Backend] = find_backend,
    ) -> None:
        """Keep where to look; `load` does the work.

        Args:
            paths: Repositories; also single model files and model directories.
            settings: How to load.
            find: Backend by name.
        """
        self.index = Index()
        self.models: dict[str, LoadedModel] = {}
        self.failures: dict[str, LoadFailure] = {}
        self._paths = tuple(paths)
        self._settings = settings or LoadSettings()
        self._backends = Backends(self._settings, find)

    def load(self) -> Mapping[str, LoadFailure]:
        """Find and load every model; blocking, for minutes with large ones. Called once.

        Returns:
            What failed, by model; empty when all serve.

        Raises:
            ConfigError: A repository does not exist, or there is no model at all.
        """
        found = scan(self._paths)
        for name in found.sources:
            self.index.add(name)
        for name, places in found.duplicates.items():
            self.index.add(name, DUPLICATE)
            cause = ConfigError(
                f"{DUPLICATE}, expected one",
                file=", ".join(map(str, places)),
                field="name",
                value=name,
            )
            self._failed(LoadFailure(name, {WHOLE_MODEL: cause}))
        with ThreadPoolExecutor(self._settings.load_threads, "headrace-load") as threads:
            outcomes = threads.map(self._load_model, found.sources.values())
            for outcome in outcomes:
                if isinstance(outcome, LoadFailure):
                    self._failed(outcome)
        return self.failures

    def is_ready(self, *, strict: bool = True) -> bool:
        """Whether the server as a whole is ready (SEMANTICS SV-02, SV-04)."""
        if not strict:
            return True
        return self.index.is_ready() and all(
            version.healthy()
            for model in list(self.models.values())  # loading threads add to it
            for version in model.versions.values()
        )

    def close(self) -> None:
        """Close every model; nothing may execute any more. The index then says ``unloaded``."""
        unloading = VersionState(State.UNLOADING)
        unloaded = VersionState(State.UNAVAILABLE, UNLOADED)
        with ExitStack() as closing:
            for name, model in self.models.items():
                self.index.set(name, dict.fromkeys(model.versions, unloading))
                closing.callback(self.index.set, name, dict.fromkeys(model.versions, unloaded))
                closing.callback(model.close)
        self.models.clear()

    def _load_model(self, source: ModelSource) -> LoadedModel | LoadFailure:
        outcome = self._try_model(source)
        for _ in range(self._settings.retry_count):
            if not isinstance(outcome, LoadFailure):
                break
            logger.warning("%s It is tried again.", outcome.text)
            outcome = self._try_model(source)
        return outcome

    def _try_model(self, source: ModelSource) -> LoadedModel | LoadFailure:
        name = source.name
        try:
            prepared = prepare(source, self._settings, self._backends)
        except VersionError as exc:
            failure = LoadFailure(name, {exc.version: exc})
            self._show_failure(failure, exc.served)
            return failure
        except ConfigError as exc:
            self.index.add(name, str(exc))
            return LoadFailure(name, {WHOLE_MODEL: exc})
        self.index.set(name, dict.fromkeys(prepared.paths, VersionState(State.LOADING)))
        outcome = load(prepared)
        if isinstance(outcome, LoadFailure):
            self._show_failure(outcome, prepared.paths)
        else:
            self._serve(name, outcome)
        return outcome

    def _serve(self, name: str, model: LoadedModel) -> None:
        for warning in model.warnings:
            logger.warning("%s", warning)
        self.models[name] = model  # before the index: what it says is READY can be found
        self.index.set(name, dict.fromkeys(model.versions, VersionState(State.READY)))

    def _show_failure(self, failure: LoadFailure, served: Iterable[int]) -> None:
        """Write the causes into the index; the good versions of a failed unit are unloaded (SEMANTICS MC-05)."""
        reasons = {version: str(cause) for version, cause in failure.causes.items()}
        self.index.set(
            failure.model,
            {
                version: VersionState(State.UNAVAILABLE, reasons.get(version, UNLOADED))
                for version in served
            },
        )

    def _failed(self, failure: LoadFailure) -> None:
        logger.error("%s", failure.text)
        self.failures[failure.model] = failure
