"""Checks of how far to trust a map.

``randomise`` makes the copy with random weights, ``ranks`` compares orders, and ``result`` is the
table of it all.
"""
