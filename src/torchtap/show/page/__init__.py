"""The page of a run, in the order in which it is made.

``build`` is the door. ``measured_run`` reads the numbers of a run, ``buckets`` makes fewer of many
steps, ``highlights`` says what stands out; ``feature_images``, ``value_spread`` and ``graph_panel``
make pictures; ``static_pictures``, ``sections`` and ``diagnosis_panel`` write what is readable
without scripts, and ``document`` puts it together with the assets and a content-security policy.
"""
