"""Who may reach a server of ours from elsewhere: a bearer token in a file, TLS, certificates of clients."""

from __future__ import annotations

import hmac
import ssl
from pathlib import Path

from kvitals.agent.logger import Logger
from kvitals.series.files import load_cert_chain, read_certificates
from kvitals.series.secret_file import SecretError, secret

log = Logger()


def has_token(authorization: str, file: Path) -> bool:
    """Whether an Authorization header carries the token in `file`. The file is read each time, so it may be replaced;
    where it can not be read nobody is let in."""
    try:
        token = secret(file)
    except SecretError as error:
        log.warning("the agent cannot read the token of its clients, so it refuses every client", error=str(error))
        return False
    sent = authorization.removeprefix("Bearer ").strip()
    return hmac.compare_digest(sent.encode(errors="surrogateescape"), token.encode())


def server_tls(cert: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """The server's side of TLS: its certificate with the chain, and whose clients are let in, where that is named.
    Raises OSError where a file can not be read or is none."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_cert_chain(context, cert, key)
    if client_ca is not None:
        context.load_verify_locations(cadata=read_certificates(client_ca))
        context.verify_mode = ssl.CERT_REQUIRED
    return context
