"""Hostile input: every decoder by itself, then live engines on real NIXL, while honest rooms run between them."""
