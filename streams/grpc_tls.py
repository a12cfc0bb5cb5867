"""TLS of the gRPC server, from the same files as that of HTTP; renewed ones hold for new connections."""

from __future__ import annotations

import grpc
from headrace.streams.reloaded import Reloaded
from headrace.streams.tls import ServerTls


def credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Return what a port is opened with.

    Raises:
        ConfigError: A file cannot be read, or certificate and key do not fit together: gRPC itself would say so to
            each client and nobody else.
    """
    paths = [path for path in (tls.cert, tls.key, tls.client_ca) if path is not None]

    def load() -> grpc.ServerCertificateConfiguration:
        tls.context()  # checks them
        root = None if tls.client_ca is None else tls.client_ca.read_bytes()
        pair = (tls.key.read_bytes(), tls.cert.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=root)

    latest = Reloaded(paths, load, what="gRPC certificate", look_every_s=tls.look_every_s)
    return grpc.dynamic_ssl_server_credentials(
        latest(), latest, require_client_authentication=tls.client_ca is not None
    )
