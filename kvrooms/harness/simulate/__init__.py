"""Many rooms, many faults, one seed: the product's engines in the simulated world."""
