"""PyTorch's hooks, tamed: the only room that puts hooks on modules, tensors and nodes.

In the order in which it is read:

- :mod:`~torchtap.hooks.taps`: what is wanted of one module, and the tally of each site.
- :mod:`~torchtap.hooks.module_hook`, :mod:`~torchtap.hooks.order`,
  :mod:`~torchtap.hooks.guards`: a hook on a module, its place in the table, and how the compiler
  sees it.
- :mod:`~torchtap.hooks.calls`, :mod:`~torchtap.hooks.replay`: numbers of calls, and which call a
  checkpoint computes again.
- :mod:`~torchtap.hooks.module_hooks`: all hooks of one engine on modules; watches and edits own
  one each.
- :mod:`~torchtap.hooks.fused`: steps aside where a hook would switch off a fused kernel.
- :mod:`~torchtap.hooks.graph`, :mod:`~torchtap.hooks.views`, :mod:`~torchtap.hooks.no_grad`,
  :mod:`~torchtap.hooks.backwards`: autograd's nodes, views that are overwritten, why there is no
  gradient, and numbers of backwards.
- :mod:`~torchtap.hooks.tensor_hooks`, :mod:`~torchtap.hooks.param_hooks`: hooks that outlive a
  call.
- :mod:`~torchtap.hooks.optimizer_hooks`: steps of optimizers.
- :mod:`~torchtap.hooks.saved_slots`: where nodes keep saved tensors.
- :mod:`~torchtap.hooks.saved_pairs`, :mod:`~torchtap.hooks.scope`: hooks on saved tensors, and the
  modules that they are on for.
- :mod:`~torchtap.hooks.uncompiled`: lets what is compiled run as it is written.
- :mod:`~torchtap.hooks.marks`: ``tt.mark``.
"""
