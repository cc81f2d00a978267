"""``tt.watch``: an engine carries out a plan on a model.

``README.md`` beside this file is the way through the room.
"""
