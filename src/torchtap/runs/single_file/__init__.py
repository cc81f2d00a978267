"""A run in one safetensors file.

``header`` says what is in it and believes nothing that has not its checksum, without torch;
``tensors`` writes and reads its bytes, ``file`` makes a run of them, ``doctor`` compares them all.
``values`` and ``packed`` are nested values and statistics as flat tensors.
"""
