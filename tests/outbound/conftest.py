import ssl
from pathlib import Path

import pytest

from tests.certificate import certificate_of
from tests.http_server.conftest import loop

__all__ = ["loop"]


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Of a host that `inside` resolves to loopback, and that is believed."""
    path = tmp_path / "cert.pem"
    path.write_bytes(certificate_of("inside.test"))
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)
    return context
