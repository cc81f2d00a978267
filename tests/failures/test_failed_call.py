"""The call of a module that failed is told where it is certain, and not where it is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt
from torchtap.failures.failed_call import ordinal


class Twice(nn.Module):
    """Calls one layer several times; what it takes has three features at the call that fails."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.block = nn.Sequential(self.fc, nn.ReLU())
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = getattr(self, self.name)(x)
        return result

    def hidden(self, x: Tensor) -> Tensor:
        return self.fc(x)


class Lines(Twice):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        h = torch.relu(self.fc(h))
        return self.fc(h[:, :3]) + self.fc(x)


class Nested(Twice):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.fc(self.fc(x))[:, :3])


class First(Twice):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.fc(x[:, :3]))


class Counted(Twice):
    def forward(self, x: Tensor) -> Tensor:
        for step in range(2, 12, 2):
            x = self.fc(x)
            x = self.fc(x[:, :3] if step == 6 else x)
        return x


class Enumerated(Twice):
    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        for at, _ in enumerate("abc", 1):
            if at == 3:
                x = x[:, :3]
            x = self.fc(x)
        return x


class InBlock(Twice):
    def forward(self, x: Tensor) -> Tensor:
        h = self.block(x)
        return self.block(h[:, :3])


class Branch(Twice):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = self.fc(x).detach()
        return self.fc(x[:, :3])


class OneBranch(Twice):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() < 0:
            return self.fc(x)
        if x.sum() > 0:
            h = self.fc(x)
            h = self.fc(h[:, :3])
        else:
            h = self.fc(self.fc(x))
        return h


class Method(Twice):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.hidden(x).detach()[:, :3])


class Other(Twice):
    def forward(self, x: Tensor) -> Tensor:
        h = self.block(x).detach()
        return self.fc(h[:, :3])


class Skipping(Twice):
    def forward(self, x: Tensor) -> Tensor:
        for at in range(3):
            if at == 1:
                continue
            x = self.fc(x[:, : 4 - at // 2]).detach()
        return x


class While(Twice):
    def forward(self, x: Tensor) -> Tensor:
        at = 0
        while at < 3:
            x = self.fc(x[:, : 4 - at // 2]).detach()
            at += 1
        return x


class Several(Twice):
    def forward(self, x: Tensor) -> Tensor:
        parts = [self.fc(one).detach() for one in (x, x)]
        return self.fc(parts[0][:, :3])


class Once(Twice):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x[:, :3])


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


class Unrolled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell()

    def forward(self, x: Tensor) -> Tensor:
        for t in range(4):
            x = self.cell(x[:, :3] if t == 2 else x)
        return x


def call_line(net: nn.Module) -> str:
    with pytest.raises(RuntimeError) as caught, tt.explain_errors(net):
        net(torch.ones(2, 4))
    text = " ".join(caught.value.__notes__[0].split())
    assert "fault of torchtap" not in text
    return text.partition(" call ")[2].partition(" line ")[0]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Lines, "its 3rd call in this forward of the Lines"),
        (Nested, "its 3rd call in this forward of the Nested"),
        (First, "its 1st call in this forward of the First"),
        (Counted, "its 6th call in this forward of the Counted"),
        (Enumerated, "its 4th call in this forward of the Enumerated"),
        (OneBranch, "its 2nd call in this forward of the OneBranch"),
        (InBlock, "inside block (Sequential), in its 2nd call in this forward of the InBlock"),
    ],
)
def test_the_call_is_counted_where_the_source_tells(
    kind: Callable[[str], nn.Module], told: str
) -> None:
    assert call_line(kind("")).endswith(f", {told}")


@pytest.mark.parametrize("kind", [Branch, Method, Other, Skipping, While, Several, Once])
def test_nothing_is_said_of_the_number_where_the_source_does_not_tell(
    kind: Callable[[str], nn.Module],
) -> None:
    line = call_line(kind(""))
    assert not any(word in line for word in ("1st", "2nd", "3rd", "4th", "earlier")), line


def test_the_call_of_what_is_around_the_module_is_told() -> None:
    assert (
        call_line(Unrolled()) == "self.fc(x), inside cell (Cell), in its 3rd call in this "
        "forward of the Unrolled"
    )


def test_of_a_module_that_stands_twice_in_a_sequential_the_graph_tells_how_often_it_ran() -> None:
    fc = nn.Linear(4, 4)
    net = nn.Sequential(fc, nn.ReLU(), fc, nn.Unflatten(1, (2, 2)), fc)
    assert call_line(net).endswith("on a result of 2 earlier calls of it")


def test_ordinals() -> None:
    numbers = (1, 2, 3, 4, 11, 12, 13, 21, 22, 103, 111)
    assert [ordinal(one) for one in numbers] == (
        ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "103rd", "111th"]
    )
