"""``tt.watch``: an :class:`~torchtap.capture.engine.Engine` carries out a plan on a model.

In the order in which it is read:

- :mod:`~torchtap.capture.watch`: the door and the handle. :mod:`~torchtap.capture.delivery` brings
  records to sinks, :mod:`~torchtap.capture.missing` says why a site has none.
- :mod:`~torchtap.capture.engine`, :mod:`~torchtap.capture.callbacks`: what is done as a module is
  entered and left. ``input`` and ``output`` are kept at that moment
  (:mod:`~torchtap.capture.value_ports`, :mod:`~torchtap.capture.copy_policy`).
- ``grad_output``: a hook on the tensor at the moment of return. It stays with that very value, also
  when the caller goes on with ``out += x``. A *view* that the caller overwrites loses its hook
  without a word; such views are found and followed (:mod:`~torchtap.capture.gradient_ports`).
- ``grad_input``: hooks on the autograd nodes where the argument enters the module; their sum is
  what flows through the module (:mod:`~torchtap.capture.pending_gradient`). No tensor is replaced
  and no node is put in between. Full backward hooks are not used: they interpose a function that
  breaks in-place modules, object identity and nested outputs.
- ``param``, ``buffer``, ``param_grad``: :mod:`~torchtap.capture.state_ports`. ``step_grad``,
  ``update``: :mod:`~torchtap.capture.optimizer_ports`. ``saved``:
  :mod:`~torchtap.capture.saved_port`.
- :mod:`~torchtap.capture.compiled`: inside of what ``torch.compile`` traces.
- :mod:`~torchtap.capture.evaluation`: which forwards evaluate a model that trains.
- :mod:`~torchtap.capture.training`: watches a program that does not ask for it.

A new port has its name in :mod:`torchtap.core.site`, is taken in
:mod:`~torchtap.capture.engine`, and has a file of its own here.

Gradients are bound to their call when the call is made, so nothing is counted in backward.
"""
