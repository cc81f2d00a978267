"""Ends of the steps of a training, told by forwards, backwards and steps of optimizers."""

from __future__ import annotations

import itertools
import threading
from functools import partial

import pytest

from torchtap.capture.training.optimizer_cycle import ModelState, OptimizerCycle, OptimizerState


def steps(
    events: str,
    *,
    trained_by: str = "",
    backwards: int | None = None,
    has_gradients: bool = False,
) -> str:
    """The events with a bar where a step ends.

    Args:
        events: a small letter is a training forward of that model, the same capital a step of
            the optimizer that trains it, a hyphen a backward through the last model.
        trained_by: further optimizers, each followed by the model that it trains.
        backwards: as of ``OptimizerCycle``.
        has_gradients: whether all parameters have gradients.
    """
    out: list[str] = []
    cycle = OptimizerCycle(lambda models: out.append("|"), backwards=backwards)
    models: dict[str, ModelState] = {}
    optimizers: dict[str, OptimizerState] = {}
    pairs = [(name, name.lower()) for name in events if name.isupper()]
    pairs = [pair for pair in pairs if pair[0] not in trained_by[::2]]
    for name in events:
        if name.islower() and name not in models:
            models[name] = ModelState()
            cycle.models.append(models[name])
    numbers = itertools.count()
    for name, model in dict.fromkeys(
        [*pairs, *zip(trained_by[::2], trained_by[1::2], strict=True)]
    ):
        optimizers[name] = state = OptimizerState(
            partial(_set_of, next(numbers)), lambda: has_gradients
        )
        state.models.append(models.setdefault(model, ModelState()))
        models[model].optimizers.append(state)
        cycle.optimizers.append(state)
    last = None
    for name in events:
        if name == "-":
            assert last is not None
            last.has_backward = True
            out.append(name)
        elif name.islower():
            last = models[name]
            cycle.enter(last)
            out.append(name)
        else:
            cycle.begin(optimizers[name], has_closure=False)
            out.append(name)
            cycle.finish(optimizers[name])
    return "".join(out)


def _set_of(number: int) -> set[int]:
    return {number}


def trained(cycle: OptimizerCycle, *params: set[int]) -> tuple[ModelState, list[OptimizerState]]:
    """A model in a cycle, and an optimizer of it for each set of parameters."""
    model = ModelState()
    model.optimizers = [OptimizerState(partial(set, one)) for one in params]
    for one in model.optimizers:
        one.models.append(model)
    cycle.models.append(model)
    cycle.optimizers += model.optimizers
    return model, model.optimizers


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("m-Mm-Mm-M", "m-M|m-M|m-M"),  # Plain.
        ("m-m-Mm-m-M", "m-m-M|m-m-M"),  # Accumulation.
        ("mm-Mmm-M", "mm-M|mm-M"),  # Two views of one sample.
        ("d-gd-Dd-Gd-gd-Dd-G", "d-gd-Dd-G|d-gd-Dd-G"),  # dcgan.
        ("gd-Ggdd-Dgd-Ggdd-D", "gd-Ggdd-D|gd-Ggdd-D"),  # A GAN that begins with its generator.
        ("gd-Dgd-Dgd-Ggd-Dgd-Dgd-G", "gd-Dgd-Dgd-G|gd-Dgd-Dgd-G"),  # Two critics' steps for one.
        ("c-Cac-Ac-Cac-A", "c-Cac-A|c-Cac-A"),  # An actor that runs after its critic stepped.
        ("c-Cc-Cac-Ac-Cc-Cac-A", "c-C|c-Cac-A|c-C|c-Cac-A"),  # Delayed: every second time.
        ("a-Aa-Aa-Ab-Bb-B", "a-A|a-A|a-Ab-B|b-B"),  # One model after the other.
        ("a-Ab-Ba-Ab-B", "a-Ab-B|a-Ab-B"),  # Two in turn.
        ("M", "M|"),  # Forwards are not heard of: they run in a compiled graph.
        ("MM", "M|M|"),
    ],
)
def test_a_step_ends_where_a_model_begins_again_what_it_has_done(
    events: str, expected: str
) -> None:
    assert steps(events) == expected


def test_two_optimizers_of_one_model_make_one_step() -> None:
    assert steps("m-XYm-XYm", trained_by="XmYm") == "m-XY|m-XY|m"


def test_without_optimizers_a_step_ends_after_each_backward() -> None:
    assert steps("mm-m-mm-m") == "mm-|m-|mm-|m"


def test_steps_may_be_counted_by_backwards() -> None:
    assert steps("m-Mm-Mm-Mm-Mm", backwards=2) == "m-Mm-M|m-Mm-M|m"


def test_two_compiled_models_that_take_turns_make_one_step() -> None:
    assert steps("DGDG", trained_by="DdGg") == "DG|DG|"


def test_an_optimizer_that_is_never_used_does_not_keep_a_step_open_for_ever() -> None:
    done = steps("mu-M" * 60, trained_by="MmUu")
    first, *others = done.split("|")
    assert len(first) < 4 * 20
    assert set(others) == {"mu-M"}


def test_an_optimizer_of_the_same_parameters_is_another_choice_and_not_waited_for() -> None:
    ended: list[int] = []
    cycle = OptimizerCycle(lambda models: ended.append(len(models)))
    model, (used, _) = trained(cycle, {1, 2}, {2})
    for _ in range(3):
        cycle.enter(model)
        cycle.begin(used, has_closure=False)
        cycle.finish(used)
    assert ended == [1, 1]


def test_the_step_before_ends_before_a_closure_is_called() -> None:
    events: list[str] = []
    cycle = OptimizerCycle(lambda models: events.append("|"))
    model, (optimizer,) = trained(cycle, {1})
    for _ in range(2):
        cycle.begin(optimizer, has_closure=True)
        events.append("(")
        for _ in range(3):
            cycle.enter(model)
            events.append("m")
        cycle.finish(optimizer)
        events.append(")")
    assert "".join(events) == "(mmm)|(mmm)"


def test_a_step_of_an_optimizer_that_raised_does_not_count() -> None:
    ended: list[int] = []
    cycle = OptimizerCycle(lambda models: ended.append(1))
    model, (optimizer,) = trained(cycle, {1})
    cycle.enter(model)
    cycle.begin(optimizer, has_closure=False)  # It raises.
    cycle.enter(model)
    assert not ended
    cycle.begin(optimizer, has_closure=False)
    cycle.finish(optimizer)
    cycle.enter(model)
    assert ended == [1]


def test_a_skipped_step_counts_as_made_by_those_that_have_not_stepped() -> None:
    ended: list[int] = []
    cycle = OptimizerCycle(lambda models: ended.append(1))
    model, _ = trained(cycle, {1})
    cycle.enter(model)
    cycle.skip(model)
    cycle.enter(model)
    assert ended == [1]


def test_optimizers_that_follow_each_other_take_no_turns() -> None:
    # Both train the model of which "a" is a forward; C only after B.
    assert steps("aBaBaBaCaCaC", trained_by="BaCa", has_gradients=True) == "aB|aB|aB|aC|aC|aC"


def test_an_optimizer_without_gradients_is_waited_for_before_its_first_step() -> None:
    assert steps("dgDdgGdgDdgG") == "dgDdgG|dgDdgG"


def test_an_optimizer_that_is_no_more_is_not_waited_for() -> None:
    ended: list[list[ModelState]] = []
    cycle = OptimizerCycle(ended.append)
    model = ModelState()
    held = [{1}, {1}]
    optimizers = [OptimizerState(partial(held.__getitem__, number)) for number in (0, 1)]
    model.optimizers = optimizers
    cycle.models.append(model)
    cycle.optimizers.extend(optimizers)
    for number in (0, 0, 1, 1):
        cycle.enter(model)
        cycle.begin(optimizers[number], has_closure=False)
        cycle.finish(optimizers[number])
        if number == 1:
            held[0] = set()
    cycle.enter(model)
    assert len(ended) == 4


def test_models_in_two_threads_have_steps_of_their_own() -> None:
    ended: list[ModelState] = []
    cycle = OptimizerCycle(ended.extend)
    models = [ModelState(), ModelState()]
    for number, model in enumerate(models):
        optimizer = OptimizerState(partial(_set_of, number))
        optimizer.models, model.optimizers = [model], [optimizer]
        cycle.models.append(model)
        cycle.optimizers.append(optimizer)

    def train(number: int) -> None:
        for _ in range(3):
            barrier.wait(10)
            with lock:
                cycle.enter(models[number])
            barrier.wait(10)
            with lock:
                cycle.begin(cycle.optimizers[number], has_closure=False)
                cycle.finish(cycle.optimizers[number])

    barrier, lock = threading.Barrier(2), threading.Lock()
    threads = [threading.Thread(target=train, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [ended.count(model) for model in models] == [2, 2]
