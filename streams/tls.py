"""TLS of a server whose certificate may be renewed while it runs."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from headrace.schemas.errors import ConfigError
from headrace.streams.reloaded import LOOK_EVERY_S, Reloaded


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Where the parts of a server's TLS lie, each in PEM.

    Attributes:
        cert: The server's certificate, with those in between behind it.
        key: Its private key, without a password.
        client_ca: Authorities, one of which must have signed the certificate of every caller; None asks for none.
        look_every_s: How soon a renewed certificate is seen.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None
    look_every_s: float = LOOK_EVERY_S

    def context(self) -> ssl.SSLContext:
        """Return the context to listen with; each connection gets the certificate as it is when it comes.

        Authorities of callers are those of now: the library has no way to change them later.

        Raises:
            ConfigError: A file cannot be read, or certificate and key do not fit together.
        """
        context = self._load()
        latest = Reloaded(
            (self.cert, self.key), self._load, what="certificate", look_every_s=self.look_every_s
        )

        def renew(connection: ssl.SSLObject, _name: object, _first: object) -> None:
            connection.context = latest()

        # Called when a caller has said hello, with a server's name or without: before the certificate is sent.
        context.sni_callback = renew
        return context

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # Without a password a key that needs one would ask on the terminal, where nobody answers.
            context.load_cert_chain(self.cert, self.key, password="")
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:  # SSLError is an OSError
            files = [path for path in (self.cert, self.key, self.client_ca) if path is not None]
            raise ConfigError(
                f"expected a certificate and its key in PEM: {error.args[-1]}",
                file=", ".join(map(str, files)),
            ) from error
        return context
