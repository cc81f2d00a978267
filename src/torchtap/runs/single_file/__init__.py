"""A run in one safetensors file.

``header`` says what is in it and believes nothing that has not its checksum, without torch;
``description`` is the one reader of what a header tells of a run, ``file_source`` makes a run of it
and ``write_run`` a file of a run, whose bytes ``file_tensors`` writes and reads. ``nested_json``
and ``packed_series`` are nested values and statistics as flat tensors. ``file_doctor`` compares
every checksum.
"""
