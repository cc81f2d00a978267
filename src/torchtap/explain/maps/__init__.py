"""Maps: ``map_values``, the ``map`` itself, its ``map_page`` and its ``map_file``."""
