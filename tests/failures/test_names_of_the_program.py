"""Notes call tensors and modules as the program does, and make up no name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from error_programs.program import Program, error_of

pytestmark = pytest.mark.filterwarnings("ignore")
NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(8, 2))
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(3, 2)})

    def forward(self, x, head=""):
        return self.heads[head](x) if head else self.net(x)

"""
LOOP = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 5), nn.Linear(4, 2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

"""
ASKED = """
used, spare = nn.Linear(3, 1), nn.Linear(3, 1)
loss = used(torch.ones(2, 3)).sum()
params = [*used.parameters(), *spare.parameters()]
"""
UNUSED = "gradient of spare.weight is None"
CASES = {
    "a variable": (NET + "model = Net()\nmodel(torch.ones(5, 4))", "model.net[2] = nn.Linear("),
    "no variable": (NET + "Net()(torch.ones(5, 4))", "self.net[2] = nn.Linear("),
    "a member of a dict of modules": (
        NET + "model = Net()\nmodel(torch.ones(5, 4), 'b')",
        "model.heads['b'] = nn.Linear(",
    ),
    "a wrapper": (
        NET + "model = nn.DataParallel(Net())\nmodel(torch.ones(5, 4))",
        "model.module.net[2] = nn.Linear(",
    ),
    "an item of a dict": (
        "models = {'gen': nn.Linear(4, 8), 'dis': nn.Linear(9, 1)}\n"
        "models['dis'](models['gen'](torch.ones(2, 4)))",
        "models['dis'] = nn.Linear(8, 1)",
    ),
    "an item of a list": (
        "nets, h = [nn.Linear(4, 8), nn.Linear(9, 1)], torch.ones(2, 4)\n"
        "for net in nets:\n    h = net(h)",
        "nets[1] = nn.Linear(8, 1)",
    ),
    "an attribute of a trainer": (
        "class Trainer:\n    def __init__(self, model):\n        self._model = model\n\n"
        "    def fit(self, batch):\n        return self._model(batch)\n\n"
        "Trainer(nn.Sequential(nn.Linear(8, 2))).fit(torch.ones(2, 4))",
        "self._model[0] = nn.Linear(4, 2)",
    ),
    "only the name that nobody reads": (
        "model = 3\n_ = nn.Sequential(nn.Linear(8, 2))\n_(torch.ones(2, 4))",
        "<model>[0] = nn.Linear(4, 2)",
    ),
    "a name beside that one": (
        "_ = nn.Sequential(nn.Linear(8, 2))\nnet = _\nnet(torch.ones(2, 4))",
        "net[0] = nn.Linear(4, 2)",
    ),
    "the layer of the round before": (
        LOOP + "Net()(torch.ones(3, 4))",
        "made by layers.1 (Linear) at train.py:14: x = layer(x)",
    ),
    "the first of a loop": (LOOP + "Net()(torch.ones(3, 8))", "float32[3, 8], an argument of"),
    "an unpacked gradient": (
        ASKED + "a, b = torch.autograd.grad(loss, [used.weight, spare.weight], allow_unused=True)\n"
        "b.norm()",
        UNUSED,
    ),
    "an item of the gradients": (
        ASKED + "grads = torch.autograd.grad(loss, params, allow_unused=True)\ngrads[2] + 1",
        UNUSED,
    ),
    "the gradient of a round": (
        ASKED + "grads = torch.autograd.grad(loss, params, allow_unused=True)\n"
        "for p, g in zip(params, grads):\n    p.grad = 0.1 * g",
        UNUSED,
    ),
    "the gradient of a comprehension": (
        ASKED + "grads = torch.autograd.grad(loss, params, allow_unused=True)\n"
        "sum(g.norm() for g in grads)",
        UNUSED,
    ),
    "a gradient by name": (
        ASKED + "names = ['a', 'b', 'c', 'd']\n"
        "grads = torch.autograd.grad(loss, params, allow_unused=True)\n"
        "named = dict(zip(names, grads))\nnamed['c'].norm()",
        UNUSED,
    ),
    "a gradient of a list that is made": (
        ASKED + "held = dict(enumerate(params))\n"
        "grads = torch.autograd.grad(loss, list(held.values()), allow_unused=True)\ng = grads[2]\n"
        "g.norm()",
        UNUSED,
    ),
}


def note_of(source: str, folder: Path) -> str:
    (note,) = error_of(Program("of a test", "", source, "", "", ()), folder).__notes__
    assert "fault of torchtap" not in note
    return " ".join(note.split())


@pytest.mark.parametrize("case", CASES)
def test_a_note_names_what_the_program_names(case: str, tmp_path: Path) -> None:
    source, says = CASES[case]
    note = note_of(source, tmp_path)
    assert says in note
    assert not re.search(r"(?<!\w)_+(?!\w)(?!\(torch)", note)
    rows = re.findall(r"operand .*?(?= operand | ways out)", note)
    assert len(rows) == len(set(rows))


def test_another_module_in_each_round_has_no_number_of_calls(tmp_path: Path) -> None:
    source = LOOP.replace("for layer in self.layers:", "for i in range(3):").replace(
        "layer(x)", "self.layers[i](x)"
    )
    assert "3rd call" not in note_of(source + "Net()(torch.ones(3, 4))", tmp_path)


@pytest.mark.slow
def test_a_compiled_module_is_called_by_its_variable_and_its_innermost_line(tmp_path: Path) -> None:
    source = NET.replace("self.net(x)", "self.run(x)") + (
        "    def run(self, x):\n        return self.net(x)\n\n"
        "model = torch.compile(Net(), backend='eager')\nmodel(torch.ones(5, 4))"
    )
    note = note_of(source, tmp_path)
    assert "module model (Net)" in note
    assert "line train.py:17, compiled" in note
