"""How far to trust a map: ``curves`` of deletion and insertion over what ``perturb`` takes away.

``randomise`` makes the copy with random weights, ``ranks`` compares orders, and ``result`` is the
table of it all.
"""
