"""How bytes move: NIXL, the control channel and the bootstrap registry, as verbs on protocol values."""
