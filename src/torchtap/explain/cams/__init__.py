"""Class activation maps: a layer's channels, each by what it is worth to a score, added up.

In the order in which it is read: ``layer_choice`` chooses where; ``map_layout`` tells channels from
places, and ``which_input`` what they lie over. ``activations`` reads value and gradient there, with
``layer_notes``, and ``watched_layers`` where notes are not enough. ``formulas``, ``forwards``
(Score-CAM, Ablation-CAM) and ``last_linear`` (CAM) say what a channel is worth, and
``cancelled_sums`` where a map is rounding alone.
"""
