"""Random states and settings, which decide the bits of a call beside module and arguments."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

Surroundings = dict[str, Any]
"""Name of a setting -> its value: texts, numbers, truth values, dtypes, tensors, lists of these."""


def _sdp_flags() -> list[bool]:
    cuda: Any = torch.backends.cuda
    return [cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()]


def _set_sdp_flags(flags: list[bool]) -> None:
    cuda: Any = torch.backends.cuda
    cuda.enable_flash_sdp(flags[0])
    cuda.enable_mem_efficient_sdp(flags[1])
    cuda.enable_math_sdp(flags[2])


def _set_deterministic(value: list[bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _deterministic() -> list[bool]:
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return [torch.are_deterministic_algorithms_enabled(), warns]


def _set_mkldnn(value: bool) -> None:
    torch.backends.mkldnn.enabled = value  # type: ignore[assignment]


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "matmul_precision": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    "deterministic": (_deterministic, _set_deterministic),
    "mkldnn": (lambda: bool(torch.backends.mkldnn.enabled), _set_mkldnn),
    "attention_kernels": (_sdp_flags, _set_sdp_flags),
    "fused_encoder": (
        torch.backends.mha.get_fastpath_enabled,
        torch.backends.mha.set_fastpath_enabled,
    ),
}
"""Settings of PyTorch that change which kernel runs, and how each is read and written."""


def _devices() -> list[str]:
    accelerator = torch.accelerator.current_accelerator()
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]


def random_states() -> dict[str, Any]:
    """The states of the global generators: of PyTorch on all devices, of Python and of NumPy."""
    version, words, gauss = random.getstate()
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, list(words), gauss],
    }
    if "numpy" in sys.modules:
        import numpy

        state = numpy.random.get_state(legacy=False)
        words = state["state"]["key"].tolist()
        others = (state["state"]["pos"], state["has_gauss"], state["gauss"])
        states["numpy"] = [state["bit_generator"], words, *others]
    for name in _devices()[1:]:
        device: Any = getattr(torch, name, None)
        if hasattr(device, "get_rng_state_all") and device.is_initialized():
            states[name] = device.get_rng_state_all()
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Give the global generators the states that :func:`random_states` told."""
    for name, state in states.items():
        if name == "torch":
            torch.set_rng_state(state)
        elif name == "python":
            random.setstate((state[0], tuple(state[1]), state[2]))
        elif name == "numpy":
            import numpy

            words = numpy.array(state[1], dtype=numpy.uint32)
            numpy.random.set_state((state[0], words, *state[2:]))
        elif name in _devices():
            getattr(torch, name).set_rng_state_all(state)


def surroundings_now() -> Surroundings:
    """Return the surroundings of a call that would begin now."""
    return {
        "torch": str(torch.__version__),
        "random": random_states(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": {
            name: [torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)]
            for name in _devices()
        },
        "settings": {name: read() for name, (read, _) in SETTINGS.items()},
    }


@contextlib.contextmanager
def as_it_was(around: Surroundings, *, is_random: bool = True) -> Iterator[Callable[[], Any]]:
    """Inside, settings and random states are those of the call; all are put back at the end.

    Args:
        around: of the call.
        is_random: whether the random states are taken from the call too.

    Yields:
        a function that makes a context of the modes in which the forward ran: grad mode, inference
        mode and autocast. A backward runs outside of them.
    """
    states = random_states()
    settings = {name: read() for name, (read, _) in SETTINGS.items()}
    try:
        for name, value in around["settings"].items():
            if name in SETTINGS and value != settings[name]:
                SETTINGS[name][1](value)
        if is_random:
            set_random_states(around["random"])
        yield lambda: _modes(around)
    finally:
        for name, value in settings.items():
            if SETTINGS[name][0]() != value:
                SETTINGS[name][1](value)
        set_random_states(states)


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Inside, autocast is off on all devices, as it is to be in a backward."""
    with contextlib.ExitStack() as stack:
        for name in _devices():
            if torch.is_autocast_enabled(name):
                dtype = torch.get_autocast_dtype(name)
                stack.enter_context(torch.autocast(name, dtype=dtype, enabled=False))
        yield


@contextlib.contextmanager
def _modes(around: Surroundings) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, (is_on, dtype) in around["autocast"].items():
            if name in _devices():
                stack.enter_context(torch.autocast(name, dtype=dtype, enabled=is_on))
        if around["inference"]:
            stack.enter_context(torch.inference_mode())
        elif torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(around["grad"]))
        yield
