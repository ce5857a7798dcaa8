"""Proof at both ends of a connection that the other knows the shared secret, and a digest on every frame after it.

| who | says |
|---|---|
| dialler | `KRA1`, 32 random bytes |
| listener | `KRA1`, 32 random bytes |
| dialler | its proof: HMAC-SHA256 under the secret of "dialler's proof" and both random numbers |
| listener | its proof: the same of "listener's proof" |

From then on each frame is followed by 16 bytes: BLAKE2b over the frame, its length included, under a key that belongs
to this connection and direction, salted with the frame's number. So nothing can be changed, left out, repeated, turned
round, or carried over from another connection. Nothing is hidden: whoever reads the network reads the frames.

The dialler proves itself first: a stranger gets nothing out of a listener on which to try guesses of the secret.
"""

from __future__ import annotations

import hashlib
import hmac

from ..protocol.errors import WireError

MAGIC = b"KRA1"
TAG_LENGTH = 16
_NONCE_LENGTH = 32
_PROOF_LENGTH = 32
_GREETING_LENGTH = len(MAGIC) + _NONCE_LENGTH
ROLES = ("dialler", "listener")
WANTED = "the peer wants proof of a shared secret, and we have none: set KVROOMS_SECRET to that of the peer"


class Session:
    """What a proven connection has: a key per direction, and how many frames have gone each way."""

    __slots__ = ("_ours", "_received", "_sent", "_theirs")

    def __init__(self, ours: bytes, theirs: bytes) -> None:
        self._ours = ours
        self._theirs = theirs
        self._sent = self._received = 0

    def seal(self, frame: bytes) -> bytes:
        """The digest that follows the next frame that is sent."""
        number = self._sent
        self._sent = number + 1
        return _digest(self._ours, number, frame)

    def check(self, frame: bytes, digest: bytes) -> None:
        """Raise WireError unless this is the frame that follows the last one that was received."""
        if not hmac.compare_digest(_digest(self._theirs, self._received, frame), digest):
            raise WireError("digest", f"frame {self._received} is not the one that the peer sent next")
        self._received += 1


class Proof:
    """The exchange before the first frame, as one end sees it. `session` is set when both have proven themselves."""

    def __init__(self, secret: bytes, nonce: bytes, *, inbound: bool) -> None:
        """nonce: 32 random bytes, used for nothing else."""
        assert len(nonce) == _NONCE_LENGTH
        self._secret = secret
        self._nonce = nonce
        self._inbound = inbound
        self._nonces = b""
        self._got = bytearray()
        self.session: Session | None = None
        self.first = b"" if inbound else MAGIC + nonce
        """What we say before the other end has said anything."""

    @property
    def rest(self) -> bytes:
        """What came after the exchange, once it is over: the beginning of the first frame."""
        return bytes(self._got)

    def take(self, data: bytes) -> bytes:
        """Take in what has arrived; returns what is to be said. Raises WireError: the other end is no peer of ours."""
        self._got += data
        said = b""
        if not self._nonces:
            if self._got[: len(MAGIC)] != MAGIC[: len(self._got)]:
                raise WireError("authentication", "it does not authenticate: has it no secret?")
            if len(self._got) < _GREETING_LENGTH:
                return b""
            theirs = self._cut(_GREETING_LENGTH)[len(MAGIC) :]
            self._nonces = theirs + self._nonce if self._inbound else self._nonce + theirs
            said = MAGIC + self._nonce if self._inbound else self._proof(ROLES[0])
        if len(self._got) < _PROOF_LENGTH:
            return said
        if not hmac.compare_digest(self._cut(_PROOF_LENGTH), self._proof(ROLES[not self._inbound])):
            raise WireError("authentication", "it has another secret")
        keys = [self._made(f"frames of the {role}") for role in ROLES]
        self.session = Session(*(reversed(keys) if self._inbound else keys))
        return said + self._proof(ROLES[1]) if self._inbound else said

    def _cut(self, length: int) -> bytes:
        taken = bytes(self._got[:length])
        del self._got[:length]
        return taken

    def _proof(self, role: str) -> bytes:
        return self._made(f"{role}'s proof")

    def _made(self, of: str) -> bytes:
        return hmac.digest(self._secret, b"kvrooms 1 " + of.encode() + self._nonces, hashlib.sha256)


def _digest(key: bytes, number: int, frame: bytes) -> bytes:
    return hashlib.blake2b(frame, digest_size=TAG_LENGTH, key=key, salt=number.to_bytes(16, "little")).digest()
