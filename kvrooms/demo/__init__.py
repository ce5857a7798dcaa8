"""The main job end to end: real model caches over real NIXL between real processes."""
