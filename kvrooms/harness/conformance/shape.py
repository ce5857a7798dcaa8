"""What the suite and a subject exchange: memory and its items, what a caller opens, what a subject can do."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, TypeAlias

Side: TypeAlias = Literal["prefill", "decode"]
SIDES: Final[tuple[Side, Side]] = ("prefill", "decode")
Spelling: TypeAlias = Literal["absent", "None", "list", "tuple", "none_entry", "array", "mapping", "flat", "iterator"]
GuestSays: TypeAlias = Literal["claim", "grant", "notification"]
ALL_SPELLINGS: Final[frozenset[Spelling]] = frozenset(
    {"absent", "None", "list", "tuple", "none_entry", "array", "mapping", "flat", "iterator"}
)


class _Absent:
    """The argument is not given at all."""

    def __repr__(self) -> str:
        return "absent"

    def __reduce__(self) -> str:
        return "ABSENT"  # one and the same in every process


ABSENT: Final = _Absent()
"""State indices that the caller does not pass: the call is made without the argument."""


class ComponentShape(NamedTuple):
    """One state component: bytes of one item (one slot, or one page of the component), items on each side.

    owed: "always" (one slot per room, as Mamba has it; the suite then always gives indices) or "when_indexed" (a
    sliding window or a sparse-attention index; the suite gives indices or spells that there are none).
    """

    name: str
    owed: Literal["always", "when_indexed"]
    item_bytes: int
    prefill_items: int
    decode_items: int


class Shape(NamedTuple):
    """The memory of both sides. page_bytes: of one page in all its layers together, 0 where there are no KV layers.

    A subject may split a page into layers and K and V as it likes: `read` and `fill` see the concatenation.
    aux_bytes: of one aux slot. state: the components, in order. ranks: of prefill and of decode. An item is what all
    ranks of a side have of it together; how it is split among them is the subject's business.
    split: how many of decode's pages one of prefill's is; a page of decode then has page_bytes / split bytes, and what
    `read` and `fill` see of a page of prefill are the bytes of these pages one after another, each as decode has it.
    layers: of how many layers a page is, where a subject is asked to send them apart; 0: as it likes.
    """

    page_bytes: int
    prefill_pages: int
    decode_pages: int
    aux_bytes: int
    prefill_aux_slots: int
    decode_aux_slots: int
    state: tuple[ComponentShape, ...] = ()
    ranks: tuple[int, int] = (1, 1)
    split: int = 1
    layers: int = 0

    @property
    def alike(self) -> bool:
        """Whether each side has one rank, and both have the same memory."""
        return self.ranks == (1, 1) and self.split == 1

    def page_bytes_of(self, side: Side) -> int:
        """Bytes of a page of a side."""
        return self.page_bytes if side == "prefill" else self.page_bytes // self.split

    def ranks_of(self, side: Side) -> int:
        """How many ranks a side has."""
        return self.ranks[side == "decode"]


class Item(NamedTuple):
    """One unit of memory: a KV page, an aux slot, or an item of state component number `component`."""

    kind: Literal["kv", "aux", "state"]
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants here
    component: int = 0


class Request(NamedTuple):
    """What a caller opens on one side.

    number, attempt: the name that both sides share; where the implementation has no attempts it sees only those with
    attempt 0. pages: on decode the destination pages in order; on prefill the source pages in order (the sends follow
    separately; an implementation that must be told the total when it opens takes `len(pages)`). aux_index: the slot.
    state_indices: on decode a Python value in one of the spellings that the traits allow, or ABSENT: pass it on exactly
    as it is. On prefill it is ABSENT, always: state goes with `send`.
    held: on decode the pages of the leading positions, which it holds already (a prefix); `pages` are those of the
    positions after these, and there may be none. Nothing may be written to what is held. Prefill's caller knows nothing
    of it: it opens and sends the whole prompt. An engine whose prefill is told what decode holds, and sends the rest,
    leaves it out itself. odd: a rank whose caller was given something else than those of the others.
    """

    number: int
    attempt: int
    pages: tuple[int, ...]
    aux_index: int
    state_indices: Any = ABSENT
    held: tuple[int, ...] = ()
    odd: OddRank | None = None


class OddRank(NamedTuple):
    """One rank of a side whose caller asks for something else (`Traits.odd_ranks`).

    request: what it opens. state: on prefill the indices that it sends, a list per component. Of its pages it sends as
    many as the others in each send, and with the last one all that are left.
    """

    rank: int
    request: Request
    state: list[list[int]] = []  # noqa: RUF012 - never changed


class View(NamedTuple):
    """What one side believes of a room, for timelines. Words of the implementation where it has them, else "".

    phase: "Transferring", "KV". met: obligations that are met. waiting: the obligation it waits for ("the state
    notification of rank 0"). belief: anything else that helps ("expects 1 chunk, has seen 1; expects state").
    """

    phase: str
    met: str = ""
    waiting: str = ""
    belief: str = ""


class Traits(NamedTuple):
    """What the implementation is and what it allows. A property that needs more is unknown, with the reason.

    prefill_spellings, decode_spellings: forms in which each side can be given state indices by its own API (its type
    annotations or documentation count, not whether it copes): `absent` no argument; `None`; `list` a list with one list
    per component ([[3, 5]], [[]], [[], []], []); `tuple` the same as tuples; `none_entry` None for a component without
    indices ([None]); `array` numpy arrays in a list; `mapping` from component name; `flat` a flat list, one component;
    `iterator` something that can be read once.
    components: the largest number of state components, 0 where it moves no state. always: whether it has components
    that are owed always (Mamba), when_indexed: and such that are owed only if indexed.
    pulls: decode reads, instead of prefill writing. room_numbers: both sides name a room by a number that the caller
    chooses and may use again. attempts: that number has a second part that tells attempts at it apart.
    decode_first: decode may be opened before prefill is, and before anything was sent.
    chunks: pages may be sent in several sends. zero_pages: a room may own no pages (all of them are on decode already).
    prefixes: decode may hold the first pages of a room already (`Request.held`); all of them with zero_pages. splits:
    how many of decode's pages one of prefill's may be (`Shape.split`), beside 1: then a prefix, or a prompt, may end
    inside a page of prefill. layers: of how many layers a page is whose layers `send_layers` can send apart; 0: none.
    aborts: sides on which a caller can abort a room. deadlines: sides whose rooms end by themselves if left alone,
    within about `start`'s deadline_s. failures: `failure` tells why. counts: `held` counts. frees: `memory_free` is a
    word of its own; otherwise it is the moment at which the engine around it hands the memory out again, usually the
    end of the room. kills: `kill` and `restart` work, for these sides. lost_messages: `lose` works. held_writes:
    `hold_writes` works. injects: `inject` can say something in these channels. guests: `guest` can say these things.
    failing_writes: `fail_writes` works.
    ranks: the numbers of ranks (prefill, decode) with which it can be started, beside (1, 1). odd_ranks: sides of which
    a rank's caller can be given something else than the others (`Request.odd`).
    simulated: `settle` is exact; no real time passes, and patience means nothing.
    """

    prefill_spellings: frozenset[Spelling]
    decode_spellings: frozenset[Spelling]
    components: int = 1
    always: bool = True
    when_indexed: bool = True
    pulls: bool = False
    room_numbers: bool = True
    attempts: bool = False
    decode_first: bool = True
    chunks: bool = True
    zero_pages: bool = False
    prefixes: bool = False
    splits: frozenset[int] = frozenset()
    layers: int = 0
    aborts: frozenset[Side] = frozenset()
    deadlines: frozenset[Side] = frozenset()
    failures: bool = False
    counts: bool = False
    frees: bool = False
    kills: frozenset[Side] = frozenset()
    lost_messages: bool = False
    held_writes: bool = False
    failing_writes: bool = False
    injects: frozenset[Literal["control", "notification"]] = frozenset()
    guests: frozenset[GuestSays] = frozenset()
    ranks: frozenset[tuple[int, int]] = frozenset()
    odd_ranks: frozenset[Side] = frozenset()
    simulated: bool = False
