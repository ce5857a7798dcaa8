"""Mistakes about staging slots: whose they are and until when, what lies in them, and what is believed of them."""

from __future__ import annotations

from .mutant import Mutant
from .plant import Text

_POSTING, _DECODE = "engine.prefill_posting:PrefillPosting.", "engine.decode_staging:"

STAGING = (
    # -- whose they are, and until when --------------------------------------------------------------------------------
    Mutant(
        "slot-for-two",
        "the lowest free slot is looked up, and stays in the list",
        Text("engine.staging:Stage.take", "heapq.heappop(self._free)", "self._free[0]"),
        ("S1",),
    ),
    Mutant(
        "posted-slot-is-free",
        "what a write reads of a slot is out of it once the write is posted",
        Text(
            _POSTING + "_post",
            "self._posted[handle] = Posted(writer, piece, slot)",
            "self._unstage(writer, slot)\n        self._posted[handle] = Posted(writer, piece, None)",
        ),
        ("S3",),
    ),
    Mutant(
        "lent-slots-end-with-the-room",
        "a room that has ended needs no slots",
        Text(
            "engine.decode_core:DecodeCore._step",
            "self._by_token.pop(grant.token, None)",
            "self._by_token.pop(grant.token, None); self._take_back(grant)",
        ),
        ("S3",),
    ),
    Mutant(
        "lent-slots-end-with-the-connection",
        "a prefill rank that is not connected does not write to the slots that it was lent",
        Text(
            "engine.decode_links:DecodeLinks._lost",
            "self._fail(grant.record, On.PEER_LOST, failure)",
            "self._fail(grant.record, On.PEER_LOST, failure); self._take_back(grant)",
        ),
        ("S3",),
    ),
    Mutant(
        "lent-slots-are-kept",
        "slots that were lent to a grant are not taken back at its end",
        Text("engine.decode_core:DecodeCore._free", "self._take_back(grant)", "pass"),
        ("C1",),
    ),
    Mutant(
        "refused-write-keeps-its-slot",
        "a slot comes back when its write has settled, so not when it could not be posted",
        Text(
            _POSTING + "_post",
            "self._unstage(writer, slot)\n        if isinstance(error",
            "if isinstance(error",
        ),
        ("C1",),
    ),
    Mutant(
        "write-that-is-over-at-once-keeps-its-slot",
        "a slot comes back when its write is seen to have settled, so not when it was over at once",
        Text(
            _POSTING + "_post",
            "self._unstage(writer, slot)\n        self._settled(writer, piece, None)",
            "self._settled(writer, piece, None)",
        ),
        ("C1",),
    ),
    Mutant(
        "failed-write-keeps-its-slot",
        "a slot comes back when its write has settled well",
        Text(_POSTING + "_take_in", "self._unstage(writer, slot)", "self._unstage(writer, None if error else slot)"),
        ("C1",),
    ),
    # -- what lies in them ---------------------------------------------------------------------------------------------
    Mutant(
        "full-slot-is-filled",
        "a slot that was filled may be filled again at once: decode scatters quickly",
        Text(_POSTING + "_place_in_slots", "filled = writer.empty.pop()", "filled = writer.empty[-1]"),
        ("S1",),
    ),
    Mutant(
        "emptied-before-it-is",
        "decode says that a slot is empty, and then empties it",
        Text(
            "engine.decode_arrivals:DecodeArrivals._staged",
            "landed = self._unpacked(grant, part, staged)",
            "self._emptied(grant, staged.slot)\n        landed = self._unpacked(grant, part, staged)",
        ),
        ("S1",),
    ),
    Mutant(
        "emptied-is-not-told",
        "decode says nothing of a slot that it has emptied",
        Text("engine.decode_arrivals:DecodeArrivals._staged", "self._emptied(grant, staged.slot)", "pass"),
        ("L2",),
    ),
    Mutant(
        "emptied-slot-wakes-nobody",
        "a grant that waits for an empty slot is looked at again when something else happens to it",
        Text(_POSTING + "_emptied", "self._make_ready(writer)", "pass"),
        ("L2",),
    ),
    Mutant(
        "scattered-from-the-first-slot",
        "what has landed in a slot is scattered from the beginning of the buffer",
        Text("engine.staging:Stage.scatter", "first = slot * self.slot_bytes", "first = 0"),
        ("S1",),
    ),
    Mutant(
        "scattered-to-the-first-pages",
        "what has landed in a slot goes to as many pages, from the room's first page on",
        Text(
            _DECODE + "_transfer",
            "to.items(grant.manifest, kind, component, first, first + size)",
            "to.items(grant.manifest, kind, component, 0, size)",
        ),
        ("S1",),
    ),
    Mutant(
        "scattered-as-it-lay-on-prefill",
        "runs lie as far apart on decode as on prefill",
        Text(
            "protocol.grids:Grid.scattering", "Packing(self.target[:3]", "Packing((self.target.base, *self.source[1:3])"
        ),
        ("S1",),
    ),
    Mutant(
        "landed-with-the-first-buffer",
        "a position of which some buffers are scattered has landed",
        Text(_DECODE + "_whole", "if covers(there, 0, count):", "if there:"),
        ("S1",),
    ),
    Mutant(
        "buffers-that-came-are-forgotten",
        "of a position that comes in several slots only the last one counts",
        Text(_DECODE + "_whole", "grant.scattered[key] = there", "pass"),
        ("L2",),
    ),
    Mutant(
        "layers-lie-together",
        "the buffers of a layer that is sent by itself follow each other among all buffers",
        Text("protocol.shaped:_cuts", "if way is Way.SCATTERED else []", "if False else []"),
        ("S1",),
    ),
    Mutant(
        "gathered-beyond-the-slot",
        "what fits a slot of the receiver fits one of ours",
        Text(
            _POSTING + "_place_in_slots",
            "if stage is not None and piece.bytes <= stage.slot_bytes:",
            "if stage is not None:",
        ),
        ("L2",),
    ),
    Mutant(
        "without-a-slot-it-reports-by-itself",
        "what goes without a slot is the same write, and reports what it carries",
        Text(_POSTING + "_place_in_slots", "._replace(parts=piece.parts, ordered=piece.ordered)", ""),
        ("S1", "L2"),
    ),
    # -- what is believed ----------------------------------------------------------------------------------------------
    Mutant(
        "any-slot-is-emptied",
        "a slot of which decode says that it is empty may be written to",
        Text(
            _POSTING + "_emptied",
            "if writer is None or slot not in writer.filled:\n"
            '            self.counters["slots emptied that were not filled"] += 1\n'
            "            continue\n"
            "        writer.filled.remove(slot)",
            "if writer is None:\n            continue\n        writer.filled.discard(slot)",
        ),
        ("S5",),
    ),
    Mutant(
        "any-slot-is-scattered",
        "a notification names the slot that its write went to",
        Text(_DECODE + "DecodeStaging._unpacked", " or staged.slot not in grant.slots", ""),
        ("S5",),
    ),
    Mutant(
        "any-length-is-scattered",
        "what a notification says lies in a slot does lie in it",
        Text("protocol.shaped:PairTable.unpacking", "if length > most:", "if length < 0:"),
        ("S5",),
    ),
    Mutant(
        "slots-have-addresses",
        "the slots that a HELLO describes lie within the address space",
        Text("protocol.staging:check_slots", "> U64_MAX", "< 0"),
        ("S5",),
    ),
    Mutant(
        "slots-are-long-enough",
        "the slots that a HELLO describes can hold the parts that it names",
        Text("protocol.staging:check_room", "longest(grid) > slots.length:", "longest(grid) < 0:"),
        ("S5",),
    ),
    Mutant(
        "lent-slots-were-announced",
        "the slots that a METADATA lends are some of those that the HELLO has described",
        Text("engine.sends:lent_to", "0 if staging is None else staging.count", "0 if staging is None else 2**31 - 1"),
        ("S5",),
    ),
    Mutant(
        "no-page-is-a-number-of-pages",
        "where the pages that a METADATA names begin and end in ours, they hold what it wants",
        Text("engine.sends:_pages_needed", "if not count or not", "if not"),
        ("S5",),
    ),
    Mutant(
        "slots-are-lent-once",
        "no METADATA names a slot twice",
        Text("engine.sends:lent_to", "if len(set(slots)) < len(slots):", "if False:"),
        ("S5",),
    ),
)
