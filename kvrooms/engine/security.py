"""Whom an engine lets in: a secret that its peers must know, a token for its registry; or, said aloud, anybody.

On addresses of this machine nothing is asked by default. On any other, an engine without a secret does not start unless
that was allowed explicitly: whoever shakes hands with a prefill engine can ask it for caches, and whoever decode
connects to can write decode's memory. `docs/security.md` says what each mode protects.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from ..protocol.errors import InvalidArgument
from ..transport.tcp_door import is_here
from .settings import PREFIX

_SECRET, _SECRET_FILE = f"{PREFIX}SECRET", f"{PREFIX}SECRET_FILE"
_TOKEN, _ALLOW = f"{PREFIX}REGISTRY_TOKEN", f"{PREFIX}ALLOW_UNAUTHENTICATED"
SECRET_MIN = 16
_LENGTH_MAX = 1024


class Security:
    """secret: what all engines that work together know, 16 bytes or more, best random (`openssl rand -hex 32`).

    registry_token: what registries ask for; by default it is derived from the secret. allow_unauthenticated: serve and
    dial addresses of other machines although there is no secret. Raises InvalidArgument, which never shows a secret.
    """

    def __init__(
        self,
        secret: str | bytes | None = None,
        *,
        registry_token: str | None = None,
        allow_unauthenticated: bool = False,
    ) -> None:
        self.secret = None if secret is None else _secret("secret", secret)
        self.allow_unauthenticated = allow_unauthenticated
        self.token: str | None = None
        if registry_token is not None:
            self.token = _token("registry_token", registry_token)
        elif self.secret is not None:
            self.token = hmac.digest(self.secret, b"kvrooms registry token", hashlib.sha256).hex()

    def __repr__(self) -> str:
        said = {True: "set", False: "none"}
        allowed = ", anybody is let in" if self.allow_unauthenticated else ""
        return f"<Security secret {said[self.secret is not None]}, token {said[self.token is not None]}{allowed}>"

    @property
    def anywhere(self) -> bool:
        """Whether other machines may be dialled."""
        return self.secret is not None or self.allow_unauthenticated

    def check(self, listen: tuple[str, int] | None, registry: str | None) -> None:
        """Raise InvalidArgument unless an engine may listen there, and register there."""
        if listen is not None:
            self.check_host("host", listen[0])
        if registry is not None:
            self.check_registry("registry", registry)

    def check_host(self, field: str, host: str) -> None:
        """Raise InvalidArgument unless engines may listen on this host."""
        if not self.anywhere and not is_here(host):
            why = "other machines reach it, so peers must authenticate"
            raise InvalidArgument(field, host, f"{why}: set {_SECRET} (or {_SECRET_FILE}), or {_ALLOW}=1")

    def check_registry_host(self, field: str, host: str) -> None:
        """Raise InvalidArgument unless a registry may be served on this host."""
        if self.token is None and not self.allow_unauthenticated and not is_here(host):
            why = "other machines reach it, so a registry must ask for a token"
            raise InvalidArgument(field, host, f"{why}: set {_TOKEN} or {_SECRET}, or {_ALLOW}=1")

    def check_registry(self, field: str, url: str) -> None:
        """Raise InvalidArgument unless a registry at this URL may be used."""
        if self.token is None and not self.allow_unauthenticated and not is_here(urlsplit(url).hostname or ""):
            why = "a registry on another machine must be asked with a token"
            raise InvalidArgument(field, url, f"{why}: set {_TOKEN} or {_SECRET}, or {_ALLOW}=1")


def load_security(environ: Mapping[str, str] | None = None) -> Security:
    """From KVROOMS_SECRET or KVROOMS_SECRET_FILE, KVROOMS_REGISTRY_TOKEN, KVROOMS_ALLOW_UNAUTHENTICATED (0 or 1).

    Raises InvalidArgument naming the variable.
    """
    said = os.environ if environ is None else environ
    secret: bytes | None = None
    if _SECRET in said:
        secret = _secret(_SECRET, said[_SECRET])
    if _SECRET_FILE in said:
        if secret is not None:
            raise InvalidArgument(_SECRET_FILE, said[_SECRET_FILE], f"{_SECRET} is set as well")
        secret = _secret(_SECRET_FILE, _read(said[_SECRET_FILE]))
    token = said.get(_TOKEN)
    allow = said.get(_ALLOW, "0")
    if allow not in {"0", "1"}:
        raise InvalidArgument(_ALLOW, allow, "must be 0 or 1")
    return Security(
        secret,
        registry_token=None if token is None else _token(_TOKEN, token),
        allow_unauthenticated=allow == "1",
    )


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise InvalidArgument(_SECRET_FILE, path, f"cannot be read: {error.strerror}") from None


def _secret(field: str, value: str | bytes) -> bytes:
    secret = value.encode() if isinstance(value, str) else bytes(value)
    if not SECRET_MIN <= len(secret) <= _LENGTH_MAX:
        raise InvalidArgument(field, f"{len(secret)} bytes", f"a secret has {SECRET_MIN} to {_LENGTH_MAX} bytes")
    return secret


def _token(field: str, value: str) -> str:
    if not SECRET_MIN <= len(value) <= _LENGTH_MAX or not all("!" <= c <= "~" for c in value):
        why = f"a token has {SECRET_MIN} to {_LENGTH_MAX} printable ASCII characters without spaces"
        raise InvalidArgument(field, f"{len(value)} characters", why)
    return value
