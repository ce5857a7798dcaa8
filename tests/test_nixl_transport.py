"""The NIXL transport on real NIXL, two agents in this process: writes, refusals, handles."""

import os
import time
from types import SimpleNamespace

import numpy as np
import pytest
from nixl_support import LAYOUT, PAGES, STATES, Side, arrive, counted, indexed, merged, region, settle

from kvrooms.protocol.errors import PeerGone, TransportError
from kvrooms.protocol.layout import AuxSpec, BufferSpec, Layout, Region, Regions
from kvrooms.protocol.notify import PartKind
from kvrooms.protocol.plan import Transfer, pieces
from kvrooms.transport.nixl import NixlTransport

pytestmark = [pytest.mark.nixl, pytest.mark.timeout(60)]


@pytest.fixture
def pair():
    """A source and a destination that is its peer; the destination's table as the source knows it is `pair.far`."""
    source, destination = Side("source", filled=True), Side("destination", filled=False)
    try:
        far = source.transport.add_peer(*destination.describe())
        yield SimpleNamespace(a=source, b=destination, far=far)
    finally:
        source.transport.close()
        destination.transport.close()


# -- writes -----------------------------------------------------------------------------------------------------------


def test_an_indexed_write_lands_with_its_notification(pair):
    pair.a.transport.post("destination", indexed([3, 9], [5, 0]), b"note\x00\xff")
    arrived = arrive(pair.b.transport, pair.a.transport, 1)
    assert arrived == [("source", b"note\x00\xff")]
    # The notification must not be there before the bytes.
    assert (pair.b.kv[0][5] == pair.a.kv[0][3]).all()
    assert (pair.b.kv[0][0] == pair.a.kv[0][9]).all()
    assert not pair.b.kv[0][[i for i in range(PAGES) if i not in {0, 5}]].any()
    assert not pair.b.kv[1].any()


def test_a_write_without_a_notification_notifies_nobody(pair):
    pair.a.transport.post("destination", indexed([1], [1]), b"")
    pair.a.transport.post("destination", indexed([2], [2]), b"second")
    assert arrive(pair.b.transport, pair.a.transport, 1) == [("source", b"second")]


def test_merged_and_indexed_writes_move_the_same_bytes(pair):
    a, b = pair.a, pair.b
    ours, theirs = list(range(4, 12)), list(range(20, 28))
    base = PAGES  # the second buffer
    a.transport.post("destination", indexed([base + i for i in ours], [base + i for i in theirs]), b"1")
    settle(a.transport, b.transport)
    by_index = b.kv[1].copy()
    b.kv[1][:] = 0
    length = LAYOUT.kv[1].item_length
    rows = ([[a.kv[1].ctypes.data + 4 * length, 8 * length, 0]], [[b.kv[1].ctypes.data + 20 * length, 8 * length, 0]])
    a.transport.post("destination", merged(*rows), b"2")
    settle(a.transport, b.transport)
    assert by_index.any()
    assert (b.kv[1] == by_index).all()


@pytest.mark.parametrize("piece_bytes", [1 << 20, 2048])
def test_plan_and_lists_number_every_buffer_alike(pair, piece_bytes):
    rng = np.random.default_rng(5)
    ours, theirs = (rng.permutation(PAGES).astype(np.int32) for _ in range(2))
    slots = [rng.permutation(STATES)[:3].astype(np.int32) for _ in range(4)]
    one, two = np.array([1], np.int32), np.array([2], np.int32)
    transfers = [
        Transfer(PartKind.KV, 0, 0, 0, ours, theirs),
        Transfer(PartKind.STATE, 0, 0, 0, slots[0], slots[1]),
        Transfer(PartKind.STATE, 1, 1, 0, slots[2], slots[3]),
        Transfer(PartKind.AUX, 0, 0, 0, one, two),
    ]
    for piece in pieces(pair.a.table, pair.far, transfers, piece_bytes):
        pair.a.transport.post("destination", piece, b"x")
        settle(pair.a.transport, pair.b.transport)
    for mine, landed in zip(pair.a.kv, pair.b.kv, strict=True):
        assert (landed[theirs] == mine[ours]).all()
    for component, (source, target) in enumerate([slots[:2], slots[2:]]):
        for mine, landed in zip(pair.a.state[component], pair.b.state[component], strict=True):
            assert (landed[target] == mine[source]).all()
            assert np.count_nonzero(landed.any(axis=1)) == 3
    for mine, landed in zip(pair.a.aux, pair.b.aux, strict=True):
        assert (landed[2] == mine[1]).all()
        assert np.count_nonzero(landed.any(axis=1)) == 1


def test_the_last_piece_of_a_split_position_reports_all_of_it(pair):
    index = np.array([7], np.int32)
    cut = list(pieces(pair.a.table, pair.far, [Transfer(PartKind.KV, 0, 0, 0, index, index)], 1000))
    assert [piece.ordered for piece in cut] == [False, False, True]
    for piece in cut:
        if piece.ordered:
            settle(pair.a.transport, pair.b.transport)
        pair.a.transport.post("destination", piece, b"whole" if piece.parts else b"")
    assert arrive(pair.b.transport, pair.a.transport, 1) == [("source", b"whole")]
    assert all((landed[7] == mine[7]).all() for mine, landed in zip(pair.a.kv, pair.b.kv, strict=True))


def test_each_handle_settles_once(pair):
    handles = [pair.a.transport.post("destination", indexed([i], [i]), b"%d" % i) for i in range(PAGES)]
    flying = [handle for handle in handles if handle is not None]
    assert pair.a.transport.in_flight == len(flying)
    over, arrived = settle(pair.a.transport, pair.b.transport)
    arrived += arrive(pair.b.transport, pair.a.transport, PAGES - len(arrived)) if len(arrived) < PAGES else []
    assert sorted(one.handle for one in over) == sorted(flying)
    assert all(one.error is None for one in over)
    assert sorted(int(one.message) for one in arrived) == list(range(PAGES))
    assert pair.a.transport.settled() == ()


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [indexed([0], [10**6]), indexed([-1], [0]), indexed([0, 1], [0]), indexed([], [])])
def test_a_write_outside_the_lists_is_refused_and_changes_nothing(pair, piece):
    with pytest.raises(TransportError, match="destination"):
        pair.a.transport.post("destination", piece, b"x")
    assert pair.a.transport.in_flight == 0
    pair.a.transport.post("destination", indexed([1], [1]), b"y")
    assert arrive(pair.b.transport, pair.a.transport, 1) == [("source", b"y")]


def test_a_merged_write_outside_the_registered_memory_is_refused(pair):
    last = pair.b.kv[0].ctypes.data + pair.b.kv[0].nbytes
    far = max(last, *(array.ctypes.data + array.nbytes for array in [*pair.b.kv, *pair.b.aux])) + (1 << 40)
    with pytest.raises(TransportError):
        pair.a.transport.post("destination", merged([[pair.a.kv[0].ctypes.data, 512, 0]], [[far, 512, 0]]), b"x")
    assert pair.a.transport.in_flight == 0


def test_memory_of_another_kind_is_refused_in_words(pair):
    with pytest.raises(TransportError, match="VRAM"):
        pair.a.transport.post("destination", indexed([0], [0], "VRAM"), b"x")


def test_a_stranger_cannot_be_written_to(pair):
    with pytest.raises(PeerGone, match="nobody"):
        pair.a.transport.post("nobody", indexed([0], [0]), b"x")


def test_garbage_is_no_metadata(pair):
    for blob in (b"", b"garbage", pair.b.transport.metadata()[:100]):
        with pytest.raises(TransportError, match="stranger"):
            pair.a.transport.add_peer("stranger", blob, LAYOUT, pair.b.regions)


def test_metadata_of_another_agent_is_refused_and_forgotten():
    a, b = Side("a", filled=True), Side("b", filled=False)
    try:
        name, blob, layout, regions = b.describe()
        with pytest.raises(TransportError, match="not that of c"):
            a.transport.add_peer("c", blob, layout, regions)
        assert not a.transport._wrapper.check_remote_metadata(name)
        # Under its own name it is welcome.
        a.transport.add_peer(name, blob, layout, regions)
        a.transport.post("b", indexed([0], [0]), b"x")
        assert arrive(b.transport, a.transport, 1) == [("a", b"x")]
    finally:
        a.transport.close()
        b.transport.close()


def test_a_peers_metadata_under_another_name_does_not_harm_the_peer(pair):
    _, blob, layout, regions = pair.b.describe()
    with pytest.raises(TransportError):
        pair.a.transport.add_peer("impostor", blob, layout, regions)
    pair.a.transport.post("destination", indexed([0], [0]), b"x")
    assert arrive(pair.b.transport, pair.a.transport, 1) == [("source", b"x")]


def test_regions_that_are_not_registered_are_refused_and_can_be_corrected():
    a, b = Side("a", filled=True), Side("b", filled=False)
    try:
        name, blob, layout, regions = b.describe()
        wrong = Regions(
            tuple(Region(one.address + (1 << 40), one.items) for one in regions.kv), regions.aux, regions.state
        )
        with pytest.raises(TransportError, match="not registered"):
            a.transport.add_peer(name, blob, layout, wrong)
        longer = Regions(tuple(Region(one.address, 10**8) for one in regions.kv), regions.aux, regions.state)
        with pytest.raises(TransportError, match="not registered"):
            a.transport.add_peer(name, blob, layout, longer)
        assert not a.transport._wrapper.check_remote_metadata(name)
        a.transport.add_peer(name, blob, layout, regions)
        a.transport.post("b", indexed([0], [0]), b"x")
        assert arrive(b.transport, a.transport, 1) == [("a", b"x")]
    finally:
        a.transport.close()
        b.transport.close()


def test_a_peer_is_added_once(pair):
    with pytest.raises(TransportError, match="already"):
        pair.a.transport.add_peer(*pair.b.describe())


def test_a_removed_peer_is_gone_and_may_come_back(pair):
    pair.a.transport.remove_peer("destination")
    pair.a.transport.remove_peer("destination")
    with pytest.raises(PeerGone):
        pair.a.transport.post("destination", indexed([0], [0]), b"x")
    pair.a.transport.add_peer(*pair.b.describe())
    pair.a.transport.post("destination", indexed([4], [4]), b"again")
    assert arrive(pair.b.transport, pair.a.transport, 1) == [("source", b"again")]
    assert (pair.b.kv[0][4] == pair.a.kv[0][4]).all()


def test_memory_is_registered_once_and_device_memory_not_without_a_device(pair):
    with pytest.raises(TransportError, match="already"):
        pair.a.transport.register(LAYOUT, pair.a.regions)
    transport = NixlTransport("no-device")
    try:
        array = np.zeros((4, 64), np.uint8)
        layout = Layout(16, (BufferSpec(0, "k", 64, "uint8"),), (AuxSpec("ids", 64, "uint8"),), ())
        if not os.path.exists("/dev/nvidia0"):  # noqa: PTH110
            with pytest.raises(TransportError, match="VRAM"):
                transport.register(layout, Regions((region(array),), (Region(array.ctypes.data, 4, "VRAM"),), ()))
            assert not transport._registered
        # What failed left nothing behind.
        transport.register(layout, Regions((region(array),), (region(array),), ()))
        assert transport.backend == "nixl/UCX"
    finally:
        transport.close()


def test_a_sender_whose_name_is_no_text_does_not_silence_the_others(pair):
    from nixl._api import nixl_agent, nixl_agent_config

    stranger = nixl_agent(b"\xff\xfe", nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))
    stranger.add_remote_agent(pair.b.transport.metadata())
    stranger.send_notif("destination", b"boo")
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        assert not pair.b.transport.arrivals()
        stranger.get_new_notifs()
    pair.a.transport.post("destination", indexed([0], [0]), b"x")
    assert arrive(pair.b.transport, pair.a.transport, 1) == [("source", b"x")]


# -- handles ----------------------------------------------------------------------------------------------------------


def test_no_handle_leaks_on_any_path(pair):
    counts = counted(pair.a.transport)
    settle_now = pair.a.transport._start_write
    for i in range(5):
        pair.a.transport.post("destination", indexed([i], [i]), b"x")
    settle(pair.a.transport, pair.b.transport)

    def refuse(request):
        raise pair.a.transport._disconnected("broken")

    pair.a.transport._start_write = refuse
    with pytest.raises(PeerGone, match="broken"):
        pair.a.transport.post("destination", indexed([0], [0]), b"x")
    pair.a.transport._start_write = lambda request: SimpleNamespace(value=-5)
    with pytest.raises(TransportError, match="-5"):
        pair.a.transport.post("destination", indexed([0], [0]), b"x")
    pair.a.transport._start_write = settle_now
    assert counts == {"made": 7, "released": 7}


def test_a_handle_that_cannot_be_released_is_released_later(pair):
    transport = pair.a.transport
    counts, release, failing = counted(transport), transport._release, [True]

    def sometimes(request):
        if failing:
            raise transport._errors[0]("not now")
        return release(request)

    transport._release = sometimes
    transport.post("destination", indexed([0], [0]), b"x")
    settle(transport, pair.b.transport)
    assert counts == {"made": 1, "released": 0}
    failing.clear()
    transport.close()
    assert counts == {"made": 1, "released": 1}


def test_a_write_that_is_stuck_does_not_hide_those_behind_it(pair):
    transport = pair.a.transport
    start, states = transport._start_write, {}

    def in_progress(request):
        start(request)
        states[request] = 1
        return SimpleNamespace(value=1)

    real = transport._check
    transport._start_write = in_progress
    transport._check = lambda request: SimpleNamespace(value=states[request])
    handles = [transport.post("destination", indexed([i], [i]), b"x") for i in range(20)]
    requests = dict(zip(handles, transport._busy["destination"].flying.values(), strict=True))
    assert not transport.settled()
    states[requests[handles[13]]] = 0
    states[requests[handles[17]]] = -3
    over = []
    for _ in range(8):  # many fewer than there are writes
        over += transport.settled()
    assert [one.handle for one in over] == [handles[13], handles[17]]
    assert over[0].error is None
    assert "-3" in over[1].error
    assert transport.in_flight == 18
    transport._check = real
    assert len(settle(transport, pair.b.transport)[0]) == 18


def test_close_is_idempotent_and_everything_is_over_after_it(pair):
    transport = pair.a.transport
    handle = transport.post("destination", indexed([0], [0]), b"x")
    if handle is not None:
        pair.b.transport.arrivals()
    transport.close()
    transport.close()
    assert transport.arrivals() == ()
    assert not transport.settled()
    transport.remove_peer("destination")
    with pytest.raises(PeerGone):
        transport.post("destination", indexed([0], [0]), b"x")
    for call in (transport.metadata, lambda: transport.add_peer(*pair.b.describe())):
        with pytest.raises(TransportError, match="closed"):
            call()
