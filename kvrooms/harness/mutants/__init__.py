"""Faults planted in the code on purpose: a property is worth what it catches."""
