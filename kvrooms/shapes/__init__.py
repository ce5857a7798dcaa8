"""Parallel layouts with a name, and what every byte of them must be.

`truth`, `walk`, `oracle` and `judge` say, byte by byte and slowly, what a room owes and what the pools of its ranks
hold afterwards. They follow from the definition of the layouts alone: no planner is asked, and no code is shared with
one. `table` lists the named shapes, `deal` gives their rooms pages, slots and indices.
"""
