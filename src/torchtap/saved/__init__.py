"""Count the tensors that autograd saves for backward, advise on them, and move them.

``README.md`` beside this file is the way through the room.
"""
