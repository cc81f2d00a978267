"""Maps: ``values`` and what is known of them, the ``map`` itself, its ``page`` and its ``file``."""
