"""Each case of the suite runs against every server that can be started here; `make compat` writes what came out."""

import contextlib
import functools
import uuid
from pathlib import Path

import compat_models
import compat_page
import compat_targets
import pytest
import tritonclient.grpc
import tritonclient.http

OPTIONS = {"headrace": ("--allow-client-shm=true", "--status-interval-ms=200"), "triton": ()}
"""Of the server that most cases ask; the Triton at hand offers shared memory anyway."""

RESTRICTED = (
    "--http-restricted-api=model-config,statistics:secret-key=open sesame",
    "--grpc-restricted-protocol=model-config,statistics:secret-key=open sesame",
    "--exit-on-error=false",
)
STRICT_OPTIONS = {
    "headrace": (*RESTRICTED, "--http-max-input-size=20000"),
    "triton": RESTRICTED,  # the size is of a later release's
}
"""Of the one with restricted groups, a small limit and a model that does not load."""


_started = contextlib.ExitStack()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """End the servers behind the last case: idle ones would slow down all other tests."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _started.close()


def pytest_addoption(parser):
    parser.addoption(
        "--compat-page", type=Path, help="Write the compatibility table to this file."
    )


def pytest_configure(config):
    page = config.getoption("--compat-page", None)
    if page is not None:
        config.pluginmanager.register(compat_page.Recorder(page))


def pytest_generate_tests(metafunc):
    if "server" in metafunc.fixturenames:
        metafunc.parametrize("server", compat_targets.names())


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """The servers with every model of the suite, by name; each starts when the first case needs it."""
    folder = tmp_path_factory.mktemp("compat")

    def start(name):
        root = compat_targets.write(name, folder / uuid.uuid4().hex)
        return compat_targets.running(name, root, OPTIONS[name])

    return _started.enter_context(contextlib.closing(compat_targets.Pool(start)))


@pytest.fixture(scope="session")
def strict_servers(tmp_path_factory):
    """The same with `STRICT_OPTIONS`, and with models that do not load."""
    folder = tmp_path_factory.mktemp("strict")

    def start(name):
        root = compat_models.write_broken(folder / uuid.uuid4().hex, name)
        return compat_targets.running(name, root, STRICT_OPTIONS[name], "/v2/models/echo/ready")

    return _started.enter_context(contextlib.closing(compat_targets.Pool(start)))


@pytest.fixture
def target(marked, server, servers):
    """The server under test, with every model of the suite."""
    return marked(servers(server))


@pytest.fixture
def strict(marked, server, strict_servers):
    """A server of its own with restricted groups, a small limit and a model that does not load."""
    return marked(strict_servers(server))


@pytest.fixture
def marked(request):
    """Notes for the table which rules a case is about, and applies what its marks say of a server."""
    return functools.partial(_mark, request.node)


def _mark(node, target):
    rules = [word for mark in node.iter_markers("rule") for word in mark.args]
    node.user_properties.append(("compat", (target.name, target.version, tuple(rules))))
    newer = node.get_closest_marker("since")
    if newer is not None and target.name == "triton" and target.version < newer.args[0]:
        pytest.skip(f"from Triton {'.'.join(map(str, newer.args[0]))} on")
    known = node.get_closest_marker("differs")
    if known is not None and target.name == "headrace":
        node.add_marker(pytest.mark.xfail(reason=known.args[0], strict=True, **known.kwargs))
    return target


@pytest.fixture
def http(target):
    """Triton's own HTTP client, connected."""
    with tritonclient.http.InferenceServerClient(target.http) as client:
        yield client


@pytest.fixture
def grpc(target):
    """Triton's own gRPC client, connected."""
    with tritonclient.grpc.InferenceServerClient(target.grpc) as client:
        yield client
