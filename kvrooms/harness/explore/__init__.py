"""Exhaustive exploration of the running tables: every interleaving of small configurations."""
