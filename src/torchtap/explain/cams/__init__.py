"""Class activation maps: a layer's channels, each by what it is worth to a score, added up.

In the order in which it is read: ``layers`` chooses where; ``layout`` tells channels from places;
``activations`` reads value and gradient there. ``formulas``, ``forwards`` (Score-CAM, Ablation-CAM)
and ``last_linear`` (CAM) say what a channel is worth.
"""
