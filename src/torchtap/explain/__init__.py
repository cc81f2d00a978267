"""What a network looked at: maps of what decided an output, and how far to trust them.

In the order in which it is read:

- :mod:`~torchtap.explain.subject`: a model and its inputs, run again and again without a trace.
- :mod:`~torchtap.explain.target`: the number of each row that is explained.
- :mod:`~torchtap.explain.map`: what comes out: raw values with their layer, target and method.
- :mod:`~torchtap.explain.cam`: the door of class activation maps.
  :mod:`~torchtap.explain.layers` chooses where, :mod:`~torchtap.explain.activations` reads value
  and gradient there, :mod:`~torchtap.explain.layout` tells channels from places, and
  :mod:`~torchtap.explain.cam_methods`, :mod:`~torchtap.explain.cam_forwards` and
  :mod:`~torchtap.explain.last_linear` are the formulas.
- :mod:`~torchtap.explain.attribute`: the door of attribution; :mod:`~torchtap.explain.request` are
  its methods and their settings, :mod:`~torchtap.explain.place` and
  :mod:`~torchtap.explain.site_value` where it looks, :mod:`~torchtap.explain.variable` the score
  as a function of what is there.
- :mod:`~torchtap.explain.again`: how a map is made anew, with another model or other inputs.
- :mod:`~torchtap.explain.check`: how far to trust a map. :mod:`~torchtap.explain.curves` are
  deletion and insertion over the places that :mod:`~torchtap.explain.perturb` finds,
  :mod:`~torchtap.explain.randomise` makes the copy with random weights, and
  :mod:`~torchtap.explain.ranks` compares orders.
- :mod:`~torchtap.explain.map_page`, :mod:`~torchtap.explain.check_result` and
  :mod:`~torchtap.explain.map_file`: maps and checks in words, and maps in files.
"""
