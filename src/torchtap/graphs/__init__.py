"""Graphs of tensors and of executions, as data and as pictures.

``README.md`` beside this file is the way through the room.
"""
