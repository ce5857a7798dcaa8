"""`kvrooms soak --shape`: the named shapes over real NIXL, one process per rank; every byte of every rank compared."""
