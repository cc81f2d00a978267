"""A live run may be read between any two steps: nothing of an earlier reading is shown again."""

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt

NUM_LAYERS = 12
"""More than are looked up one by one."""


class Skips(nn.Module):
    """Calls layer ``i`` in the steps that are a multiple of ``i + 1``."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(NUM_LAYERS))

    def forward(self, x: Tensor, step: int) -> Tensor:
        for number, layer in enumerate(self.layers):
            if step % (number + 1) == 0:
                x = layer(x)
        return x


@pytest.mark.parametrize("read_every", [1, 4])
def test_steps_of_sites(read_every: int) -> None:
    model = Skips()
    with tt.watch(model, "layers.*:output", to=tt.Stats(keep=3)) as watch:
        for step in range(1, 13):
            model(torch.ones(2, 3), step - 1 or 12)
            watch.step()
            if step % read_every:
                continue
            table = watch.run.table(steps="all")
            called = [number or 12 for number in range(step)]
            expected = [
                sum(one % (layer + 1) == 0 for one in called) for layer in range(NUM_LAYERS)
            ]
            assert [row.steps for row in table] == [one for one in expected if one]


def test_histograms_count_what_came_since() -> None:
    model = nn.Sequential(*(nn.Identity() for _ in range(NUM_LAYERS)))
    values = [torch.tensor([1.0, -2.0, 0.5 * step]) for step in range(5)]
    with tt.watch(model, "?*:output", to=tt.Stats()) as watch:
        for step, value in enumerate(values):
            model(value)
            watch.step()
            for row in watch.run.table():
                own = tt.measure(value).histogram
                assert row.stats.histogram.bins.tolist() == own.bins.tolist()
                assert row.stats.histogram.counts.tolist() == own.counts.tolist()
            whole = tt.measure(torch.cat(values[: step + 1])).histogram
            for row in watch.run.table(steps="all"):
                assert row.stats.histogram.bins.tolist() == whole.bins.tolist()
                assert row.stats.histogram.counts.tolist() == whole.counts.tolist()


def test_a_late_gradient_is_counted_after_its_step_was_read() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with tt.watch(model, "0:grad_output", to=tt.Stats()) as watch:
        first, second = model(torch.ones(1, 2)), model(torch.ones(1, 2))
        first.sum().backward()
        watch.step()
        site = "0:grad_output"
        before = watch.run.stats(site, step=0)
        (3 * second.sum()).backward()
        model(torch.ones(1, 2)).sum().backward()
        watch.step()
        after = watch.run.stats(site, step=0)
    expected = tt.measure(torch.tensor([1.0, 1.0, 3.0, 3.0])).histogram
    assert before.histogram.counts.tolist() == [2]
    assert after.histogram.counts.tolist() == expected.counts.tolist() == [2, 2]
    assert watch.run.stats(site, step="all").histogram.counts.tolist() == [4, 2]


def test_a_live_run_is_looked_at_anew_only_where_it_grew() -> None:
    model = nn.Linear(3, 2)
    with tt.watch(model, "*:output", to=tt.Stats()) as watch:
        model(torch.ones(1, 3))
        watch.step()
        first = watch.run._contents()
        assert watch.run._contents() is first
        model(torch.ones(1, 3))
        watch.step()
        assert watch.run._contents() is not first
