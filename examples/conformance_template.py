"""A subject to fill in: what the conformance suite needs of an implementation to test it.

    kvrooms conformance examples/conformance_template.py:Template
    pytest --kvrooms-subject my.module:Template

Fill in the first group and SMOKE, L2, S1 and A1 can be judged; each further group makes more properties decidable. The
words on every method stand in `kvrooms.harness.conformance.subject.Subject`, also how engines fit that know no room
numbers or that pull (`conformance_pull.py` beside this file is one). Until a method is filled in, the verdicts that
need it are unknown, which is no pass.
"""

from kvrooms.harness.conformance.subject import ABSENT, Subject, Traits, Unsupported, View


class Template(Subject):
    name = "my-engine"
    version = "0"
    traits = Traits(
        # The forms in which your own API can be given state indices, on each side.
        prefill_spellings=frozenset({"absent", "None", "list"}),
        decode_spellings=frozenset({"absent", "None", "list"}),
        components=1,  # the largest number of state components of a layout; 0 if you move no state
        # Say here what the groups below can do, for example:
        # aborts=frozenset({"prefill", "decode"}), failures=True, counts=True, frees=True,
    )

    # -- required ------------------------------------------------------------------------------------------------

    def start(self, shape, *, deadline_s=None, seed=0):
        """Start both sides with pools of `shape`. deadline_s None: set your own deadlines to ten minutes or more."""
        raise Unsupported("start is not filled in yet")

    def stop(self):
        """End everything that `start` began, hung threads too: child processes that are killed are the surest way."""

    def fill(self, side, item, data):
        """Write `data` to a page, an aux slot or a state item of a side."""
        raise Unsupported("fill is not filled in yet")

    def read(self, side, item):
        """The bytes of a page, an aux slot or a state item of a side."""
        raise Unsupported("read is not filled in yet")

    def open(self, side, request):
        """Open a room on one side; return whatever you know it by. Pass `request.state_indices` on as it is."""
        arguments = {} if request.state_indices is ABSENT else {"state_indices": request.state_indices}
        raise Unsupported(f"open is not filled in yet; it would pass on {arguments}")

    def send(self, room, pages, state_indices, *, last):
        """The next source pages are computed; `last`: nothing follows, and this carries the state."""
        raise Unsupported("send is not filled in yet")

    def poll(self, room):
        """ "open", "done" or "failed". Never blocks; may do your engine's work."""
        raise Unsupported("poll is not filled in yet")

    # -- optional: override these too, and say so in the traits --------------------------------------------------
    # abort(room), close(room)          rooms that end early: L1, L3, L4, S2, S3 (traits.aborts)
    # memory_free(room)                 a word of your own on when memory is free again: L5, S3 (traits.frees)
    # failure(room)                     why a room failed, as a caller is told: C2 (traits.failures)
    # held(side)                        the sizes of all tables that have entries per room: C1 (traits.counts)
    # kill(side), restart(side)         a side that dies: L3, L5 (traits.kills)
    # inject(side, channel, parts)      what a stranger says: S5 (traits.injects); sayings(channel) for what to change
    # request.held                      decode holds the beginning of a prompt (traits.prefixes, traits.splits)
    # send_layers(room, layers, ...)    layers that are sent apart (traits.layers)
    # request.odd                       one rank's caller is given something else (traits.ranks, traits.odd_ranks)
    # lose, hold_writes, fail_writes    faults, where your tests can make them
    # settle(until, view, ...)          exact waiting, where you simulate (traits.simulated)

    # -- for whoever reads a counterexample ----------------------------------------------------------------------

    def explain(self, room):
        """Phase, obligations met, the one it waits for, what else it believes. In your engine's own words."""
        return View(phase=self.poll(room), met="", waiting="", belief="")
