"""The built wheel holds exactly what the tree holds: `packages` and `package-data` are hand lists.

A forgotten sub-package works while installed as editable and is silently missing from the wheel, so the wheel is
built here, from a copy of the sources without any left-over metadata, and compared file by file.
"""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("schemas", "backends", "repository", "streams", "consumers", "deploy")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SHIPPED = (".py", ".avsc", ".json", ".xml", ".java")


def sources() -> set[str]:
    """Return every file of the packages that must be installed, by its installed path."""
    return {
        f"headrace/{path.relative_to(ROOT).as_posix()}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and (path.suffix in SHIPPED or path.name == "py.typed")
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build a wheel from a copy of the sources; returns the open archive."""
    tree = tmp_path_factory.mktemp("tree")
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", "."],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = (tree / "dist").glob("headrace-*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def metadata_folder(archive: zipfile.ZipFile) -> str:
    return next(name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name)


def test_the_wheel_holds_exactly_the_modules_and_data_files_of_the_tree(wheel):
    installed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert installed == sources()


def test_the_wheel_puts_one_name_into_site_packages(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"headrace", metadata_folder(wheel)}
    assert "headrace/__init__.py" not in wheel.namelist()


def test_each_package_says_that_it_is_typed(wheel):
    for package in PACKAGES:
        assert f"headrace/{package}/py.typed" in wheel.namelist()


def test_the_wheel_carries_licence_entry_points_and_extras(wheel):
    folder = metadata_folder(wheel)
    assert f"{folder}/licenses/LICENSE" in wheel.namelist()
    entry_points = wheel.read(f"{folder}/entry_points.txt").decode()
    assert "headrace = headrace.deploy.cli:main" in entry_points
    assert "onnxruntime = headrace.backends.onnxruntime:OnnxRuntimeBackend" in entry_points
    metadata = Parser().parsestr(wheel.read(f"{folder}/METADATA").decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"onnx", "gpu", "demo"} <= set(metadata.get_all("Provides-Extra"))


def test_every_folder_of_modules_is_a_listed_package():
    """Sub-packages, too: at most one level, each with its own line in `packages` and `package-dir`."""
    folders = {
        path.parent.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "__pycache__" not in path.parts
    }
    expected = {f"headrace.{folder.replace('/', '.')}" for folder in folders}
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == expected
    assert set(PYPROJECT["tool"]["setuptools"]["package-dir"]) == {
        f"headrace.{package}" for package in PACKAGES
    }
    assert all(folder.count("/") <= 1 for folder in folders)


def test_no_top_level_folder_of_modules_is_left_out():
    """A seventh package at the root would be neither installed nor checked."""
    tops = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert tops == set(PACKAGES)


def test_the_layer_contracts_cover_every_package():
    contracts = PYPROJECT["tool"]["importlinter"]
    assert set(contracts["root_packages"]) == {f"headrace.{package}" for package in PACKAGES}
    (layers,) = [c["layers"] for c in contracts["contracts"] if c["type"] == "layers"]
    listed = {name.strip() for layer in layers for name in layer.split("|")}
    assert listed == {f"headrace.{package}" for package in PACKAGES}


def test_bare_folder_names_are_banned_as_imports():
    """`import schemas` works from the checkout's root and makes a second copy of every class."""
    banned = PYPROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert set(PACKAGES) <= set(banned)


def test_pins_are_hashed_and_name_no_registry():
    for name in ("dev.txt", "uv.txt"):
        text = (ROOT / "requirements" / name).read_text()
        assert "://" not in text
        requirements = [line for line in text.splitlines() if "==" in line]
        assert requirements
        assert text.count("--hash=sha256:") >= len(requirements)
