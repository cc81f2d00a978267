"""PyTorch's hooks, tamed: the only room that puts hooks on modules, tensors and nodes.

``README.md`` beside this file is the way through the room.
"""
