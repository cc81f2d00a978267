"""``torchtap run``: the process of a training script, from its first line to its end."""
