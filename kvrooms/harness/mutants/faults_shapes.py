"""Mistakes about rooms between many ranks: who sends what, which bytes that is, and who is told of what happens."""

from __future__ import annotations

from .mutant import Mutant
from .plant import Text

_RUNS, _DEAL = "protocol.grids:_runs", "protocol.shares:_deal"
_WANTED = "engine.decode_state:wanted_from"

SHAPES = (
    # -- who sends what ------------------------------------------------------------------------------------------------
    Mutant(
        "replicas-all-send",
        "every prefill rank that has a head, or a latent, sends it: they are the same bytes",
        Text(
            _DEAL,
            "for i, target in enumerate(wanting):\n                chosen = having[i * len(having) // len(wanting)]",
            "for chosen, target in [(one, two) for one in having for two in wanting]:\n                pass",
        ),
        ("S3",),
    ),
    Mutant(
        "heads-cut-where-prefill-cuts",
        "heads are dealt in the runs that prefill ranks have; that decode ranks cut them elsewhere is forgotten",
        Text(_DEAL, "for held in (*holders, *wanted)]", "for held in holders]"),
        ("S1",),
    ),
    Mutant(
        "parts-of-the-prompt-are-replicas",
        "context-parallel ranks have the same layers and heads: one of them sends",
        Text(
            "protocol.shares:pair_up",
            "[holders] if key[0] is not PartKind.KV else _by_cp(prefill, holders)",
            "[holders]",
        ),
        ("S1",),
    ),
    Mutant(
        "who-owes-nothing-is-left-out",
        "a prefill rank that owes nobody anything has no business with a room",
        Text("protocol.shares:_pairing", "pairs[p, p * receivers // senders] = []", "pass"),
        ("L2",),
    ),
    Mutant(
        "receiver-by-its-rank",
        "a decode rank's number among those that a prefill rank serves is its rank",
        Text("protocol.shares:_pairing", "served.index(d)", "d"),
        ("L2",),
    ),
    Mutant(
        "part-of-the-prompt-rounds-up",
        "context-parallel ranks share a prompt's pages as evenly, rounded the other way",
        Text("protocol.shares:part_of", "pages * cp_rank // cp_size, ", "-(-pages * cp_rank // cp_size), "),
        ("L2",),
    ),
    Mutant(
        "buffers-by-their-place",
        "the layers of two ranks stand in the same order: the second one here is the second one there",
        Text(_DEAL, "chosen.buffer, target.buffer,", "chosen.buffer, min(chosen.buffer, target.buffer),"),
        ("L2",),
    ),
    # -- which bytes ---------------------------------------------------------------------------------------------------
    Mutant(
        "unit-offset-forgotten",
        "the units that a pair of ranks exchanges begin where each rank's units begin",
        Text(_RUNS, "shard.offset + (entry.first - shard.first) * shard.unit_stride", "shard.offset"),
        ("S1",),
    ),
    Mutant(
        "row-stride-of-the-source",
        "a token is as long on both sides",
        Text(_RUNS, "np.uint64(shard.row_stride)", "np.uint64(shards[0].row_stride)"),
        ("S1",),
    ),
    Mutant(
        "unit-stride-of-the-source",
        "heads lie as far apart on both sides",
        Text(_RUNS, "np.uint64(shard.unit_stride)", "np.uint64(shards[0].unit_stride)"),
        ("S1",),
    ),
    Mutant(
        "runs-where-decode-has-one",
        "neighbouring heads are one run if they are neighbours on decode",
        Text(_RUNS, "all(s.unit_stride == size for s in shards)", "shards[1].unit_stride == size"),
        ("S1",),
    ),
    Mutant(
        "pages-by-count",
        "the pages that a context-parallel rank sends go to the first pages of the room",
        Text(_WANTED, "pages[first - prefix : stop - prefix]", "pages[: stop - first]"),
        ("S1",),
    ),
    Mutant(
        "held-tokens-fill-no-page",
        "what decode holds in whole pages of its own is counted in pages of prefill, rounded down",
        Text(_WANTED, "sent if prefix * ours >= tokens else prefix * ours // theirs", "prefix * ours // theirs"),
        ("L2",),
    ),
    Mutant(
        "prefix-in-the-wrong-pages",
        "a prefix is so many pages, whatever their size on the other side",
        Text(_WANTED, "else prefix * ours // theirs", "else prefix"),
        ("S1",),
    ),
    Mutant(
        "tokens-that-are-there-come-again",
        "a page of prefill that decode holds in part is sent from its first token on",
        Text(
            "protocol.shaped:_Blocks.of",
            "low = max(first * from_tokens, at * to_tokens)",
            "low = max(first * from_tokens, (at - 1) * to_tokens)",
        ),
        ("S3",),
    ),
    Mutant(
        "padding-goes-along",
        "equal layouts on both sides: whole items can be sent, whatever is in them",
        Text("engine.decode_sources:DecodeSources._routes", "self.layout.padded or ", ""),
        ("S3",),
        only=True,
    ),
    Mutant(
        "component-of-our-layout",
        "the items of a component on decode are found at its place in prefill's layout",
        Text(
            "engine.sends:wanted_of",
            "regions.component_items(theirs.component_names.index(name))",
            "regions.component_items(layout.component_names.index(name))",
        ),
        ("L2",),
    ),
    Mutant(
        "indices-by-place",
        "the first component of a manifest is the first one that the caller has given indices for",
        Text(_WANTED, "tuple(named[name] for name, _ in manifest.state)", "tuple(indices[: len(manifest.state)])"),
        ("S1",),
    ),
    Mutant(
        "reported-with-the-first-layer",
        "a page counts as sent with the first of its layers",
        Text("engine.sends:Layers.whole", "return min(", "return max("),
        ("S1",),
    ),
    Mutant(
        "waits-for-layers-of-others",
        "a page counts as sent once every layer of prefill is, those of other decode ranks too",
        Text("engine.sends:_layered", "whole = layers.whole(concerned)", "whole = layers.whole(range(len(layout.kv)))"),
        ("L2",),
    ),
    Mutant(
        "reported-with-the-first-run",
        "a page that is cut into several writes is reported by each of them",
        Text("protocol.shaped:_cuts", "(part,) if last else ()", "(part,)"),
        ("S1",),
    ),
    Mutant(
        "report-overtakes-the-other-runs",
        "the write that reports a page is posted beside the others of that page",
        Text("protocol.shaped:_cuts", "ordered=last and len(edges) > 2", "ordered=False"),
        ("S1",),
    ),
    # -- who is told ---------------------------------------------------------------------------------------------------
    Mutant(
        "last-one-bound-goes",
        "once the last decode rank has asked, what is owed to it can be posted",
        Text("engine.prefill_grants:PrefillGrants._bind", "for bound in record.writers:", "for bound in (writer,):"),
        ("L2",),
    ),
    Mutant(
        "settled-for-the-first-rank",
        "a write that has settled has settled for decode rank 0",
        Text("engine.prefill_posting:PrefillPosting._settled", "Settled(writer.receiver, ", "Settled(0, "),
        ("L2",),
    ),
    Mutant(
        "landed-from-the-first-rank",
        "what has landed has come from prefill rank 0",
        Text("engine.decode_arrivals:DecodeArrivals._arrival", "Landed(grant.sender, ", "Landed(0, "),
        ("L2",),
    ),
    Mutant(
        "one-rank-is-told",
        "a failed room tells the decode rank that it was bound to first",
        Text(
            "engine.prefill_core:PrefillCore._tell_failed",
            "for writer in record.writers:",
            "for writer in list(record.writers)[:1]:",
        ),
        ("L3",),
    ),
    Mutant(
        "late-ranks-wait",
        "a decode rank that asks for a room that has failed waits for the room's next life",
        Text(
            "engine.prefill_grants:PrefillGrants._place",
            "record is None or record.room.phase is Phase.DONE",
            "record is None or record.room.phase in TERMINAL",
        ),
        ("L3",),
    ),
    Mutant(
        "free-when-the-first-lease-ends",
        "memory of a room is free when one of its leases has ended",
        Text("engine.decode_core:DecodeCore._free", "record.unreleased -= 1", "record.unreleased = 0"),
        ("S3",),
    ),
    Mutant(
        "any-instance-may-join",
        "a grant that another decode rank of the room would have is taken, whoever asks",
        Text(
            "engine.prefill_grants:_strange",
            "(bound.instance, bound.receivers) != (writer.instance, writer.receivers)",
            "bound.receivers != writer.receivers",
        ),
        ("S5",),
    ),
    Mutant(
        "a-share-is-believed",
        "what a decode rank says it is owed is within the units that both ranks have",
        Text(
            "protocol.shares:check_share",
            "if entry.first >= entry.stop or not _owns(shard, entry.first, entry.stop):",
            "if entry.first >= entry.stop:",
        ),
        ("S5",),
    ),
    Mutant(
        "declared-by-one-is-declared-by-none",
        "of what a rank declares the pages are compared where it is alone",
        Text("protocol.manifest:_restricted", "declared.pages,", "None,"),
        ("A1",),
    ),
    Mutant(
        "shared-state-not-counted",
        "indices of a component that several ranks send are counted by nobody",
        Text(
            "protocol.manifest:_restricted",
            "None if state is None else tuple((name, count) for name, count in state if name in covers.state)",
            "None",
        ),
        ("A1",),
    ),
)
