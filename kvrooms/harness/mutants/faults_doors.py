"""Mistakes about bytes, peers and processes that are not what they seem: digests, secrets, doors, forks."""

from __future__ import annotations

from .mutant import Mutant
from .plant import Text

DOORS = (
    Mutant(
        "digest-not-compared",
        "a notification that has a digest is a notification of what was sent",
        Text(
            "engine.decode_arrivals:DecodeArrivals._intact",
            "if digest == (self._digester.of(kind, place, items),):",
            "if digest:",
        ),
        ("S1",),
    ),
    Mutant(
        "digest-of-the-first-buffer",
        "keys and values are sent together: one of them will do for the digest",
        Text("engine.digests:Digester.of", "for address, length in buffers:", "for address, length in buffers[:1]:"),
        ("S1",),
    ),
    Mutant(
        "digest-of-the-first-of-each-run",
        "of pages that are neighbours the first stands for all",
        Text("engine.digests:_runs", "int(stop - start)", "1"),
        ("S1",),
    ),
    Mutant(
        "digest-from-the-start-of-its-send",
        "a digest is taken of what a send has up to the end of the part, also where the part begins later",
        Text("engine.sends:sent_items", "max(0, start - first)", "0"),
        ("L2",),
    ),
    Mutant(
        "digest-left-out-is-fine",
        "a peer that takes no digests sends none: there is nothing to compare",
        Text("engine.decode_arrivals:DecodeArrivals._intact", "if digest == (", "if not digest or digest == ("),
        ("S5",),
        only=True,
    ),
    Mutant(
        "any-proof-is-a-proof",
        "32 bytes that come where the proof should come are the proof",
        Text(
            "transport.tcp_auth:Proof.take",
            "if not hmac.compare_digest(self._cut(_PROOF_LENGTH), self._proof(ROLES[not self._inbound])):",
            "if not self._cut(_PROOF_LENGTH):",
        ),
        ("S5",),
        only=True,
    ),
    Mutant(
        "both-ends-prove-the-same",
        "whoever knows the secret can make the proof, whichever end it is",
        Text("transport.tcp_auth:Proof._proof", "{role}'s proof", "the proof"),
        ("S5",),
        only=True,
    ),
    Mutant(
        "one-key-for-both-ways",
        "a connection has a key",
        Text("transport.tcp_auth:Proof.take", 'f"frames of the {role}"', '"frames"'),
        ("S5",),
        only=True,
    ),
    Mutant(
        "frames-have-no-number",
        "a frame with a right digest is right, whenever it comes",
        Text("transport.tcp_auth:_digest", ', salt=number.to_bytes(16, "little")', ""),
        ("S5",),
        only=True,
    ),
    Mutant(
        "private-is-here",
        "addresses that the internet does not reach are our own",
        Text("transport.tcp_door:is_here", ".is_loopback", ".is_private"),
        ("S5",),
        only=True,
    ),
    Mutant(
        "silent-strangers-fill-the-door",
        "whoever has connected has time to prove itself, however many others have",
        Text("transport.tcp_door:Door.receive", "return inbound[: -self._most] if link.inbound else []", "return []"),
        ("L4",),
        only=True,
    ),
    Mutant(
        "silent-strangers-stay",
        "a connection that proves nothing does no harm",
        Text("transport.tcp_door:Door.late", "if now > end", "if False"),
        ("C1",),
        only=True,
    ),
    Mutant(
        "fork-is-the-engine",
        "a fork of the process has the engine, too",
        Text("engine.handle:check_process", "if os.getpid() != desk.pid:", "if not desk.pid:"),
        ("L1",),
        only=True,
    ),
    Mutant(
        "fork-keeps-the-sockets",
        "a fork touches no socket, so it may have copies of them",
        Text("engine.forks:_in_child", "one.forked()", "pass"),
        ("L5",),
        only=True,
    ),
)
