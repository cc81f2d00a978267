"""A model and its inputs, run again and again from one state, without leaving a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from torchtap.core.errors import InputError
from torchtap.core.module_paths import modules_of, walked_once
from torchtap.core.plan import make_plan
from torchtap.core.preserved import gradients_set_aside, preserved
from torchtap.core.rebuild import replace_arguments
from torchtap.core.tensors import kind_of
from torchtap.core.torch_messages import INFERENCE_TENSORS, says
from torchtap.core.tree import argument_leaves
from torchtap.explain.logits import class_dim_of
from torchtap.explain.target import Target, refuse_other_rows
from torchtap.explain.target_site import value_at
from torchtap.hooks.dynamo_hooks import DynamoHookSetting
from torchtap.hooks.uncompiled import uncompiled

_NO_INPUTS: Mapping[str, Tensor] = MappingProxyType({})
_INFERENCE = (
    "Tensors of this model were made under torch.inference_mode, so no gradient goes through them. "
    "Make the model outside of it, or explain copy.deepcopy(model), made outside of it, whose "
    "tensors are ordinary ones. Of tt.attribute, occlusion, feature_permutation and shapley need "
    "no gradients."
)


class Subject:
    """A model and what it is called with.

    All runs stand inside :meth:`held`. Each starts with the buffers and random numbers that were
    found, and gets clones of the tensors, so that a model that overwrites its input harms neither
    the caller nor the next run. Gradients come from ``torch.autograd.grad``, and ``.grad`` stays.

    Args:
        model: any module, in the mode in which it is.
        args: its positional arguments, nested as they may be.
        kwargs: its keyword arguments.
        is_apart: whether the first argument holds pictures that the model takes as a list.

    Attributes:
        modules: path -> module.
        inputs: name -> tensor of each tensor in the arguments, named as sites name leaves.
        num_rows: length of dimension 0 that all of them share (those without dimensions aside),
            ``None`` where they do not.
        notes: what the reader of a map should know about these runs.
        num_evals: how often the model was run so far; rows that are repeated count as often.

    Raises:
        InputError: the model is no module, holds a ScriptModule or lazy parameters, or its
            arguments hold no tensor.
    """

    def __init__(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        is_apart: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"The model is {kind_of(model)}; expected a torch.nn.Module.")
        self.model = model
        self._called = _without_replicas(model)
        self.args = args
        self.kwargs = dict(kwargs)
        self.modules, _ = modules_of(model)
        _refuse_scripted(self.modules)
        _refuse_lazy(self.modules)
        self.inputs = dict(argument_leaves(args, self.kwargs))
        if not self.inputs:
            raise InputError(
                f"No tensor is among the inputs of {type(model).__name__}; expected what the model "
                f"is called with, as in tt.cam(model, images)."
            )
        lengths = {one.size(0) for one in self.inputs.values() if one.dim()}
        self.num_rows = lengths.pop() if len(lengths) == 1 else None
        self.notes = tuple(_notes(self.modules))
        self.num_evals = 0
        self._is_apart = is_apart
        self._rewind: Callable[[], None] | None = None
        self._is_fresh = False

    def changed(
        self, *, model: nn.Module | None = None, inputs: Mapping[str, Tensor] = _NO_INPUTS
    ) -> Subject:
        """Return the same call of another model, or with other tensors.

        Args:
            model: takes the place of the model.
            inputs: name -> tensor, in place of some of :attr:`inputs`, and of the same tensor
                elsewhere among them.
        """
        made = {id(self.inputs[name]): one for name, one in inputs.items()}
        args, kwargs = replace_arguments(
            self.args,
            self.kwargs,
            lambda _, tensor: made.get(id(tensor), tensor),
            inside=lambda _, tensor, __: tensor,
        )
        model = self.model if model is None else model
        return Subject(model, args, kwargs, is_apart=self._is_apart)

    def with_rows(self) -> Subject:
        """Return the same call with a batch of pictures, which the model is given as a list.

        The model is run where the arguments may be such a list, to see whether they are: whether
        it returns a dict for each.
        """
        if self._is_apart or not _may_be_pictures(self.args, self.inputs):
            return self
        with self.held(), torch.no_grad():
            output = self.run()
        if not _are_pictures(self.args, output):
            return self
        return Subject(self.model, _as_batch(self.args), self.kwargs, is_apart=True)

    def refuse_inference(self) -> None:
        """Raise if gradients cannot go through the model, since it was made in inference mode.

        Raises:
            InputError: a parameter or buffer is an inference tensor.
        """
        for path, name, tensor in _state_of(self.modules):
            if tensor.is_inference():
                full = f"{path}.{name}" if path else name
                raise InputError(f"{full!r} is an inference tensor. {_INFERENCE}")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Buffers and random numbers are put back at the end; grad mode is on inside.

        Compiled modules run uncompiled, since compiled graphs call no hooks.
        """
        setting = DynamoHookSetting()
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(uncompiled())
            # A backward that a model runs inside of its own adds to the gradients of parameters.
            tables = [module._parameters.values() for module in self.modules.values()]
            params = [one for table in tables for one in table if one is not None]
            stack.enter_context(gradients_set_aside(params))
            setting.hold()
            stack.callback(setting.release)
            stack.enter_context(walked_once(self.model))
            self._rewind = stack.enter_context(preserved(self.modules, self.args, self.kwargs))
            self._is_fresh = True
            try:
                yield
            finally:
                self._rewind = None

    def run(self, inputs: Mapping[str, Tensor] = _NO_INPUTS, *, times: int = 1) -> Any:
        """Call the model.

        Args:
            inputs: name -> tensor to pass (a clone of) in place of one of :attr:`inputs`; its
                graph goes on into the model.
            times: how often the rows of all others are repeated, as ``Tensor.repeat`` does, where
                ``inputs`` hold so many times more rows than the originals.
        """
        args, kwargs = self._arguments(inputs, times)
        try:
            return self._called(*args, **kwargs)
        except RuntimeError as error:
            if says(error, INFERENCE_TENSORS):
                error.add_note(_INFERENCE)
            raise

    def scores(
        self, target: Target, inputs: Mapping[str, Tensor] = _NO_INPUTS, *, times: int = 1
    ) -> Tensor:
        """Return the explained number of each row, ``float[times * rows]``, with its graph.

        Args:
            target: what is explained.
            inputs: as of :meth:`run`.
            times: as of :meth:`run`.
        """
        if target.site is None:
            scores = target.scores(self.run(inputs, times=times), self._class_dim)
            if target.is_flat and times == 1:
                refuse_other_rows(scores, self.inputs)
            return scores
        args, kwargs = self._arguments(inputs, times)
        plan = make_plan(self.model, str(target.site))
        return target.scores(value_at(target.site, plan, self.modules, self._called, args, kwargs))

    def _class_dim(self, shape: Sequence[int]) -> int | None:
        return class_dim_of(self.modules, self.inputs, shape)

    def _arguments(
        self, inputs: Mapping[str, Tensor], times: int
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        assert self._rewind is not None, "runs stand inside of held()"
        if not self._is_fresh:
            self._rewind()
        self._is_fresh = False
        self.num_evals += times

        # A tensor that is given twice stays one.
        made = {id(self.inputs[name]): one.clone() for name, one in inputs.items()}

        def fresh(_: str, tensor: Tensor) -> Tensor:
            if id(tensor) not in made:
                made[id(tensor)] = _repeated(tensor.detach(), times)
            return made[id(tensor)]

        def in_object(name: str, tensor: Tensor, kind: str) -> Tensor:
            if name in inputs:
                raise InputError(
                    f"The input [{name}] is an attribute in a {kind}, which others may hold, so no "
                    f"other tensor can be put in its place. Explain the value at a site, as in "
                    f"at='layer1', or pass a tuple, list, dict or dataclass instead."
                )
            return tensor  # The object itself is passed as it is.

        args, kwargs = replace_arguments(self.args, self.kwargs, fresh, inside=in_object)
        return _as_list(args) if self._is_apart else args, kwargs


def _repeated(tensor: Tensor, times: int) -> Tensor:
    """Return a clone with so many copies of the rows."""
    if times == 1 or not tensor.dim():
        return tensor.clone()
    return tensor.repeat(times, *[1] * (tensor.dim() - 1))


def _refuse_scripted(modules: Mapping[str, nn.Module]) -> None:
    for path, one in modules.items():
        if isinstance(one, torch.jit.ScriptModule):
            raise InputError(
                f"Module {path or '.'!r} is a ScriptModule, which takes no hooks and gives its "
                f"buffers to none but itself. Explain the module that it was scripted from."
            )


def _refuse_lazy(modules: Mapping[str, nn.Module]) -> None:
    for path, _, tensor in _state_of(modules):
        if type(tensor) not in _ORDINARY and is_lazy(tensor):
            raise InputError(
                f"Module {path or '.'!r} is a {type(modules[path]).__name__} that is not "
                f"initialised yet, which the first call does. Call the model once before."
            )


_ORDINARY = (Tensor, nn.Parameter)
"""Classes of tensors that are not lazy; most are of these."""


def _state_of(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, str, Tensor]]:
    """Yield each parameter and buffer with the path of its module and its name."""
    for path, one in modules.items():
        for table in (one._parameters, one._buffers):
            for name, tensor in table.items() if table else ():
                if tensor is not None:
                    yield path, name, tensor


def _without_replicas(model: nn.Module) -> nn.Module:
    """Return the model in DDP or DataParallel, which would wait for other ranks or a backward."""
    while isinstance(model, DistributedDataParallel | DataParallel):
        model = model.module
    return model


_BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm


def _notes(modules: Mapping[str, nn.Module]) -> Iterator[str]:
    norms = [path for path, one in modules.items() if isinstance(one, _BATCH_NORMS)]
    training = [path for path in norms if modules[path].training]
    if training:
        others = f" and {len(training) - 1} more modules" if len(training) > 1 else ""
        verb = "normalise" if others else "normalises"
        yield (
            f"{training[0]}{others} {verb} over the batch (training mode): a row depends on the "
            f"others. Call model.eval() for maps of single rows"
        )


# ---------------------------------------------------------------------- lists of pictures


def _may_be_pictures(args: Sequence[Any], inputs: Mapping[str, Tensor]) -> bool:
    """Return whether a model was called with a list of pictures ``[C, H, W]``, no other tensor."""
    held = args[0] if args else None
    if type(held) not in (list, tuple) or not held or len(inputs) != len(held):
        return False
    return all(isinstance(one, Tensor) and one.dim() == 3 for one in held) and all(
        one.is_floating_point() for one in held
    )


def _are_pictures(args: Sequence[Any], output: Any) -> bool:
    """Return whether the model returned a dict for each of the pictures."""
    if type(output) not in (list, tuple) or len(output) != len(args[0]):
        return False
    return all(isinstance(one, Mapping) for one in output)


def _as_batch(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments with the pictures as one tensor, whose rows they are.

    Raises:
        InputError: they have different sizes.
    """
    pictures = args[0]
    if len({picture.shape for picture in pictures}) > 1:
        shown = ", ".join(map(kind_of, pictures[:4]))
        raise InputError(
            f"The model takes a list of pictures, and these have different sizes ({shown}), so "
            f"there is no map of one size. Explain them one at a time, each as a list of one."
        )
    return (torch.stack(list(pictures)), *args[1:])


def _as_list(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments as the model takes them: copies, since it may write into them."""
    return ([one.clone() for one in args[0]], *args[1:])
