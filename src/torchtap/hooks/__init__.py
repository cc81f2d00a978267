"""The first door to autograd: the only package that puts hooks on modules, tensors and nodes.

An :class:`Engine` carries out a :class:`~torchtap.core.plan.Plan` and hands records to one function.
How it sees what it sees:

- ``input``, ``output``: a forward pre-hook and a forward hook; the value is kept at that moment
  (:mod:`~torchtap.capture.keep`).
- ``grad_output``: a tensor hook put on the output at the moment of return. It stays with that
  very value, also when the caller goes on with ``out += x``. A *view* that the caller overwrites
  loses its hook without a word; such views are found and followed
  (:mod:`~torchtap.capture.gradients`).
- ``grad_input``: hooks on the autograd nodes where the argument enters the module
  (:mod:`~torchtap.hooks.graph`); their sum is what flows through the module. No tensor is
  replaced and no node is put in between.
- ``param``, ``buffer``, ``param_grad``: :mod:`~torchtap.capture.state`.
- Gradients are bound to their call when the call is made, so nothing is counted in backward.
- A checkpoint that runs the forward again is recognised (:mod:`~torchtap.hooks.replay`), and a
  fused kernel that a hook would switch off is left alone (:mod:`~torchtap.hooks.fused`).

Full backward hooks are not used: they interpose a function that breaks in-place modules, object
identity and nested outputs.
"""

from torchtap.capture.engine import Engine
from torchtap.hooks.marks import mark
from torchtap.hooks.spots import Spot, Tap
from torchtap.studies.plain_hooks import interposed

__all__ = ["Engine", "Spot", "Tap", "interposed", "mark"]
