"""The certificates that the tests of TLS share: an authority, a node, the client alice, and a strange authority."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from ockam.identity.tls import ServerTls, ServerTlsFiles, Tls
from ockam.identity.tls_stream import TlsListener
from tests.support.certificates import Authority

HOSTS = ("localhost", "127.0.0.1")


class Keys:
    """Certificates in one folder. server, alice: the paths of a certificate and its key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.strangers = Authority(folder, "strangers")
        self.ca = self.authority.ca
        self.server = self.authority.issue("node", hosts=HOSTS)
        self.alice = self.authority.issue("alice")

    def files(self, **changed: Any) -> ServerTlsFiles:
        """The files of a node that demands client certificates."""
        return ServerTlsFiles(
            **({"certificate": self.server[0], "key": self.server[1], "client_ca": self.ca} | changed)
        )

    def listener(self, files: ServerTlsFiles | None = None, **options: Any) -> TlsListener:
        return TlsListener(ServerTls(files or self.files()), **options)

    def tls(self, who: tuple[str, str] | None = None, **changed: Any) -> Tls:
        """The settings of a client; of alice, unless others are given."""
        certificate, key = who or self.alice
        return Tls(**({"ca": self.ca, "certificate": certificate, "key": key} | changed))

    def context(self, who: tuple[str, str] | None = None, ca: str | None = None) -> ssl.SSLContext:
        """A context of the standard library, made without any code of ours."""
        context = ssl.create_default_context(cafile=ca or self.ca)
        # Python 3.13 demands extensions here that our certificates for tests do not have.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if who is not None:
            context.load_cert_chain(*who)
        return context


def settings(keys: Keys, **changed: Any) -> dict[str, Any]:
    """The settings of a node with mutual TLS."""
    certificate, key = keys.server
    return {"tls_certificate": certificate, "tls_certificate_key": key, "tls_client_ca": keys.ca} | changed
