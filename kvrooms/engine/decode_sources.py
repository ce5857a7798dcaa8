"""Prefill instances as a decode engine finds them: their ranks, and which of them sends what here."""

from __future__ import annotations

from ..protocol.events import RoomEvent as On
from ..protocol.failure import Failure, Reason
from ..protocol.layout import Instance, Layout, Rank, differences
from ..protocol.registration import Registration
from ..protocol.shares import CannotPair, Share, covers_of, pair_up
from .core import EngineCore, Ports
from .decode_state import DecodeLink, DecodeRecord, Route, Source, Target, joined

_DIGESTS = "digests are taken of whole items: both layouts must be equal, without padding, and each rank alone"


class DecodeSources(EngineCore):
    """The part of a decode core that knows which ranks send. See `EngineCore`."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self._sources: dict[Target, Source] = {}
        self._by_target: dict[Target, DecodeLink] = {}
        self._tickets: dict[int, DecodeLink] = {}

    # -- what the other parts do ---------------------------------------------------------------------------------

    def _fail(self, record: DecodeRecord, column: On, failure: Failure) -> None:
        """End a room."""
        raise NotImplementedError

    def _located(self, record: DecodeRecord, routes: tuple[Route, ...]) -> None:
        """The ranks that send a room are known."""
        raise NotImplementedError

    def _reach(self, link: DecodeLink) -> None:
        """Connect to the engine that `link.found` names."""
        raise NotImplementedError

    def _owed_by(self, incarnation: int) -> bool:
        """Whether an engine has not said yet that it writes no more for some grant."""
        raise NotImplementedError

    # -- sources -------------------------------------------------------------------------------------------------

    def _source(self, target: Target) -> Source:
        """The instance that a caller has named; one that is new is looked for."""
        source = self._sources.get(target)
        if source is None:
            source = self._sources[target] = Source(target)
        if source.routes is None:
            for rank in source.unknown:
                self._watch(source, target._replace(rank=rank))
        return source

    def _watch(self, source: Source, target: Target) -> DecodeLink:
        link = self._link(target)
        link.sources[source] = None
        return link

    def _link(self, target: Target) -> DecodeLink:
        """The link to a target; one that is new starts to look for it."""
        link = self._by_target.get(target)
        if link is None:
            link = self._by_target[target] = DecodeLink(target)
            self._seek(link)
        return link

    def _seek(self, link: DecodeLink) -> None:
        self._tickets[self.registry.lookup(*link.target)] = link

    def _found(self, link: DecodeLink, registration: Registration) -> None:
        """The registry has named an engine: dial it, once all ranks that send together are known."""
        link.found = registration
        for source in list(link.sources):
            self._learn(source, link.target.rank, registration)
        if self._undialed(link) and (not link.sources or self._owed_by(registration.incarnation)):
            self._reach(link)  # whatever becomes of its instance, it has to promise that it writes no more

    @staticmethod
    def _undialed(link: DecodeLink) -> bool:
        """Whether the registry has named an engine that was not dialed yet."""
        return link.found is not None

    def _learn(self, source: Source, rank: int, registration: Registration) -> None:
        """One more rank of an instance is known, or known anew."""
        source.known[rank] = registration
        missing = source.unknown
        for other in missing:
            self._watch(source, source.target._replace(rank=other))
        if missing:
            names = ", ".join(map(str, missing))
            self._by_target[source.target._replace(rank=rank)].trouble = f"rank {names} of it has not registered yet"
            return
        try:
            routes = self._routes(source, [source.known[other] for other in source.ranks])
        except CannotPair as error:
            self._give_up(source, Failure(Reason.HANDSHAKE_REFUSED, joined(error.words)))
            return
        self._changed(source, routes)
        source.routes = source.placed = routes
        waiting, source.waiting = source.waiting, {}
        for record in waiting:
            self._located(record, source.routes)
        self._dial(source)

    def _changed(self, source: Source, routes: tuple[Route, ...]) -> None:
        """A rank has come back, and perhaps as another one: what waits to be asked of it was placed for what it was."""
        now = {route.target: route for route in routes}
        words = f"{source.target.instance or 'the prefill engine'} has come back with other memory"
        for route in source.placed:
            if now.get(route.target) != route:
                self._fail_held(source, route.target, Failure(Reason.PEER_LOST, words))

    def _fail_held(self, source: Source, target: Target, failure: Failure) -> None:
        """End the rooms of an instance that wait for a connection to one of its ranks."""
        link = self._by_target.get(target)
        for grant in list(link.held) if link is not None else ():
            if grant.record.target == source.target:
                self._fail(grant.record, On.PEER_LOST, failure)

    def _unlearn(self, link: DecodeLink) -> None:
        """The engine behind a link is gone: before more rooms are placed, its instance is looked for anew.

        It is known what those have that are in hand. Between two equal layouts there is nothing to forget.
        """
        for source in link.sources:
            if source.routes is None or any(route.share is not None for route in source.routes):
                source.routes = None
                source.known = {rank: one for rank, one in source.known.items() if self._in_hand(source, rank)}

    def _in_hand(self, source: Source, rank: int) -> bool:
        """Whether an engine of an instance is connected, or will be."""
        link = self._by_target.get(source.target._replace(rank=rank))
        return link is not None and not link.dropped and (link.connection is not None or link.found is not None)

    def _dial(self, source: Source) -> None:
        """Connect to the ranks that send here, and let go of the others."""
        shares = {route.target: route.share for route in source.routes or ()}
        for target in [source.target._replace(rank=rank) for rank in source.known]:
            link = self._by_target.get(target)
            if link is None:
                continue
            if link.found is None:
                if link.up and not link.dropped and target in shares and shares[target] != link.share:
                    link.share = shares[target]
                    self._drop(link, "the ranks that send together are others now")
                continue
            if target in shares:
                link.share = shares[target]
                self._reach(link)
            elif not (link.held or link.holds):
                link.found = None
                self._let_go_of(link)

    def _routes(self, source: Source, known: list[Registration]) -> tuple[Route, ...]:
        """The ranks that send to this rank. Raises CannotPair."""
        sizes = sorted({one.ranks for one in known})
        if len(sizes) > 1:
            raise CannotPair((f"the ranks of the prefill instance do not agree how many they are: {sizes}",))
        alone = len(known) == len(self.instance.ranks) == 1
        member = known[0].member
        if alone and (member is None or not (self.layout.padded or differences(self.layout, member.layout))):
            return (Route(source.target, None, None, self.layout.page_size),)
        members = [one.member for one in known]
        ranks = tuple(one for one in members if one is not None)
        if len(ranks) < len(members):
            raise CannotPair(("the prefill engine does not say what it has, and this is not its only decode rank",))
        if self.settings.digest:
            raise CannotPair((_DIGESTS,))
        pairing = pair_up(Instance(ranks), self.instance)
        return tuple(
            self._route(source.target._replace(rank=p) if len(known) > 1 else source.target, share, ranks[p])
            for (p, d), share in pairing.shares.items()
            if d == self.rank
        )

    @staticmethod
    def _route(target: Target, share: Share, sender: Rank) -> Route:
        return Route(target, share, covers_of(share, sender), sender.layout.page_size)

    def _give_up(self, source: Source, failure: Failure) -> None:
        """This rank cannot work with an instance: the rooms that wait for it learn why."""
        source.routes = None
        for record in list(source.waiting):
            self._fail(record, On.PEER_LOST, failure)
        for target in [source.target._replace(rank=rank) for rank in source.known]:
            self._fail_held(source, target, failure)
            link = self._by_target.get(target)
            if link is not None and link.found is not None and not (link.held or link.holds):
                link.found = None
                self._let_go_of(link)
        source.known = {rank: one for rank, one in source.known.items() if self._in_hand(source, rank)}

    def _expected(self, link: DecodeLink) -> Layout:
        """The layout that the engine behind a link must have."""
        if link.share is None:
            return self.layout
        found = [source.known[link.target.rank].member for source in link.sources if link.target.rank in source.known]
        return next((member.layout for member in found if member is not None), self.layout)

    def _awaited(self, link: DecodeLink) -> bool:
        """Whether rooms wait until it is known which ranks send, and for that on this link's engine."""
        return any(source.waiting for source in link.sources)

    def _let_go_of(self, link: DecodeLink) -> None:
        """Nobody needs a link any more, nor the sources that it alone keeps."""
        self._by_target = {target: other for target, other in self._by_target.items() if other is not link}
        kept = {source for other in self._by_target.values() for source in other.sources}
        for source in link.sources:
            if source not in kept and self._sources.get(source.target) is source:
                del self._sources[source.target]
