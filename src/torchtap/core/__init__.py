"""The words that every room uses. Nothing here registers a hook; the first three load no torch.

In the order in which they are read:

- :mod:`~torchtap.core.errors`, :mod:`~torchtap.core.site`, :mod:`~torchtap.core.record`: the tree
  of errors; sites and patterns; one value with its key, and what takes it.
- :mod:`~torchtap.core.absence`: what was selected and not seen, with the reason.
- :mod:`~torchtap.core.module_paths`, :mod:`~torchtap.core.plan`: the modules of a model by their
  paths; a request becomes a plan.
- :mod:`~torchtap.core.did_you_mean`, :mod:`~torchtap.core.pattern_suggestions`: names that look
  like a wrong one; patterns in place of one that fits nothing.
- :mod:`~torchtap.core.tree`, :mod:`~torchtap.core.attributes`, :mod:`~torchtap.core.rebuild`: the
  tensors in nested values, found; those in the attributes of an object; nested values made anew
  with other tensors.
- :mod:`~torchtap.core.tensors`, :mod:`~torchtap.core.distributed`, :mod:`~torchtap.core.equality`,
  :mod:`~torchtap.core.inference_mode`: facts of one tensor; what this rank holds of a distributed
  one; comparing to the bit; tensors that outlive inference mode.
- :mod:`~torchtap.core.preserved`: runs a model and puts its state and the random state back.
- :mod:`~torchtap.core.user_functions`: what a function of the user's is called and takes.
- :mod:`~torchtap.core.shape_arguments`: shapes that are given in the place of tensors.
- :mod:`~torchtap.core.blame`: whose fault an exception is, torchtap's or another's.
- :mod:`~torchtap.core.torch_messages`, :mod:`~torchtap.core.torch_nodes`: what PyTorch says where
  torchtap goes another way; classes of autograd's nodes by name.
- :mod:`~torchtap.core.text`, :mod:`~torchtap.core.outline`: numbers, sizes and tables as text;
  module paths as an indented tree.
"""
