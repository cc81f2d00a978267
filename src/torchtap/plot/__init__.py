"""Turns values into text, pictures and HTML. Computes nothing, prints nothing."""
