"""The demo's real input: files of this machine, and what Magika's own library makes of them.

Magika is imported here only. Its library reads a file's first and last bytes into 2,048 numbers for the model and
decides very small files without it; the demo takes exactly these numbers, so its answers must equal Magika's own.
"""

from __future__ import annotations

import os
import random
import sysconfig
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from headrace.schemas.errors import ConfigError
from headrace.schemas.tensor import Array

SEED = 20
"""Which files of a kind are taken is the same on every run."""

SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "node_modules"})
"""Besides hidden ones: what is made on the fly may change while the demo reads it."""


def choose_files(count: int, roots: Sequence[Path]) -> list[Path]:
    """Choose up to ``count`` files below the roots, of as many kinds (suffixes) as there are.

    Kinds take turns, so that a library of a thousand Python files and one image yields the image, too.
    """
    kinds: dict[str, list[Path]] = defaultdict(list)
    for path in sorted({path for root in roots for path in _files(root)}):
        kinds[path.suffix.lower()].append(path)
    shuffler = random.Random(SEED)  # noqa: S311  # a sample, not a secret
    for paths in kinds.values():
        shuffler.shuffle(paths)
    chosen: list[Path] = []
    while len(chosen) < count and any(kinds.values()):
        for suffix in sorted(kinds):
            if kinds[suffix] and len(chosen) < count:
                chosen.append(kinds[suffix].pop())
    return chosen


def default_roots() -> list[Path]:
    """Return the interpreter's own library and the current folder."""
    return [Path(sysconfig.get_path("stdlib")), Path.cwd()]


def _files(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [n for n in subfolders if n[0] != "." and n not in SKIPPED_FOLDERS]
        for name in names:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK):
                yield path


class FileTypes:
    """Magika's library: the model file, its labels, and its own verdicts."""

    def __init__(self) -> None:
        """Load the library.

        Raises:
            ConfigError: It is not installed; the sentence names the extra.
        """
        try:
            from magika import Magika  # noqa: PLC0415  # an extra: only the demo needs it
        except ImportError as exc:
            raise ConfigError(
                f'the demo needs Magika ({exc}); install it with: pip install "headrace[demo]"'
            ) from exc
        self._magika = Magika()

    @property
    def model_file(self) -> Path:
        """The ONNX file in the wheel."""
        return Path(self._magika._model_path)  # noqa: SLF001  # the library offers no public way

    @property
    def labels(self) -> list[str]:
        """Name of each class, in the order of the model's output."""
        return [str(label) for label in self._magika._model_config.target_labels_space]  # noqa: SLF001  # as above

    def features(self, path: Path) -> Array | None:
        """Return the model's input for a file, int32 [1, 2048], or None if the library decides without the model.

        Raises:
            OSError: The file went away meanwhile.
        """
        decided, features = self._magika._get_result_or_features_from_path(path)  # noqa: SLF001  # as above
        if features is None:
            if decided is None or not decided.ok:
                raise FileNotFoundError(f"Magika cannot read {path}")
            return None
        return np.array([*features.beg, *features.end], dtype=np.int32).reshape(1, -1)

    def verdict(self, path: Path) -> str:
        """Return the model's label for a file as the library itself finds it, by its public call.

        Raises:
            OSError: The file went away meanwhile.
        """
        return self._label(path, [path])

    def verdict_in_batch(self, path: Path) -> str:
        """Return the library's own label for a file that is asked about together with others.

        The runtime computes one row and several by different kernels, whose scores differ by up to 0.002: where two
        labels are that close, Magika itself says one thing of the file alone and another of it in a list.

        Raises:
            OSError: The file went away meanwhile.
        """
        return self._label(path, [path, path])

    def _label(self, path: Path, paths: list[Path]) -> str:
        result = self._magika.identify_paths(paths)[0]
        if not result.ok:
            raise FileNotFoundError(f"Magika cannot read {path}")
        return str(result.prediction.dl.label)
