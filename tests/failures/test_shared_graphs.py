"""Graphs that two backwards share: the note parts programs by what trains what, and by no name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from error_programs.program import PRELUDE, Program, error_of, run

pytestmark = pytest.mark.filterwarnings("ignore")

GAN = """
G, D = nn.Linear(4, 4), nn.Linear(4, 1)
oD = torch.optim.SGD(D.parameters(), 0.1)
fake = G(torch.randn(3, 4))
d_loss = D(fake).mean()
d_loss.backward()
oD.step()
g_loss = -D(fake).mean()
g_loss.backward()
"""
FIXED = """
teacher, student = nn.Linear(2, 2), nn.Linear(2, 2)
optimizer = torch.optim.SGD(student.parameters(), 0.1)
x = torch.randn(3, 2)
soft = teacher(x).softmax(-1)
for _ in range(2):
    loss = (student(x).softmax(-1) - soft).pow(2).sum()
    loss.backward()
    optimizer.step()
"""
ONLY_WAY = """
encoder, head = nn.Linear(2, 3), nn.Linear(3, 1)
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], 0.1)
features = encoder(torch.randn(4, 2)).tanh()
for _ in range(2):
    loss = head(features).mean()
    loss.backward()
    optimizer.step()
"""
OLD = """
policy = nn.Linear(4, 2)
optimizer = torch.optim.SGD(policy.parameters(), 0.1)
states = torch.randn(5, 4)
old = policy(states).log_softmax(-1)
for _ in range(2):
    loss = -(policy(states).log_softmax(-1) - old).exp().mean()
    loss.backward()
    optimizer.step()
"""
PENALTY = """
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
x = torch.randn(5, 3, requires_grad=True)
out = net(x)
slope = torch.autograd.grad(out.sum(), x)[0]
loss = out.mean() + slope.pow(2).mean()
loss.backward()
"""


def first_way(source: str, folder: Path) -> str:
    (note,) = error_of(Program("of a test", "", source, "", "", ()), folder).__notes__
    return " ".join(note.partition("ways out")[2].split()).partition(" 2. ")[0]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (GAN, "If the earlier loss is for what oD.step() trains alone"),
        (FIXED, "Detach it above the loop, since it stays as it is: soft = soft.detach()"),
        (ONLY_WAY, "Compute features, and what is computed from it, anew in each round"),
        (OLD, "If old is to follow the parameters as they train"),
        (PENALTY, "Give create_graph=True to torch.autograd.grad"),
    ],
)
def test_the_first_way_out_fits_what_each_loss_trains(
    source: str, says: str, tmp_path: Path
) -> None:
    assert says in first_way(source, tmp_path)


def test_a_penalty_trains_through_the_gradient_once_the_way_out_is_applied(tmp_path: Path) -> None:
    fixed = PENALTY.replace("out.sum(), x)", "out.sum(), x, create_graph=True)")
    names = run(PRELUDE + fixed.replace("out.mean() + ", ""), tmp_path)
    assert names["net"][2].weight.grad.abs().sum() > 0
    assert "retain_graph" not in first_way(PENALTY, tmp_path)


def test_a_critic_trains_alone_once_its_input_is_detached(tmp_path: Path) -> None:
    names = run(PRELUDE + GAN.replace("d_loss = D(fake)", "d_loss = D(fake.detach())"), tmp_path)
    # The mean over the samples of -(weight @ fake + bias), by the bias of the generator.
    torch.testing.assert_close(names["G"].bias.grad, -names["D"].weight[0].detach())
