"""Write a picture to a file: SVG, PNG, DOT and Mermaid.

In the order in which it is read:

- :mod:`~torchtap.graphs.pictures.drawing`: boxes, arrows and texts in pixels, the same for all.
- :mod:`~torchtap.graphs.pictures.colors`: what a kind of box looks like, light and dark.
- :mod:`~torchtap.graphs.pictures.svg`, :mod:`~torchtap.graphs.pictures.figure`: ink.
- :mod:`~torchtap.graphs.pictures.dot_mermaid`: DOT and Mermaid, which other programs lay out.
"""
