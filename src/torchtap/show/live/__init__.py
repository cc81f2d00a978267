"""Follows a run while it is written: its state, its worst sites, and its page in a browser."""
