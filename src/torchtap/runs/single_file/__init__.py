"""A run in one safetensors file: ``file``, with nested ``values`` and ``packed`` statistics."""
