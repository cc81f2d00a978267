"""Watch a training: measure what every layer does, find the layer that learns too fast.

What is measured is written beside the training. Stop it at any moment, also with `kill -9`, and
start it again: it goes on from its checkpoint, and so does the run. Needs scikit-learn, for its
pictures of handwritten digits, and pyarrow.
"""

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import torchtap as tt

digits = load_digits()
pictures = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
classes = torch.tensor(digits.target)

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3),
    nn.ReLU(inplace=True),
    nn.Flatten(),
    nn.Linear(288, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
checkpoint, first, last = Path("digits.pt"), 0, 60
if checkpoint.exists():
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["next"]

# Statistics of every output, its gradient, and of what the optimizer changes, in each step, and the
# values of one layer in every tenth.
where = ["*:output,grad_output,param,update", "!.:*"]
sinks = [tt.Stats(), tt.Disk("digits", values="5:output", every=10, resume=True)]
with tt.watch(model, where, to=sinks) as w:
    w.step(first)
    for step in range(first, last):
        rows = torch.randint(len(pictures), (64,))
        loss = nn.functional.cross_entropy(model(pictures[rows]), classes[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        w.log(loss=loss)
        w.step()
        if step % 20 == 19:
            w.sync()  # The run has all steps before the checkpoint that is saved now.
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "next": step + 1}, checkpoint.with_suffix(".part"))
            checkpoint.with_suffix(".part").replace(checkpoint)

run = tt.open("digits")
print(f"loss {run.scalars('loss')[1][-1]:.3f}\n")
print(run.table("*:output,grad_output"))
print("\nupdate relative to the weight, first and last step")
for name in ("0", "3", "5"):
    ratios = [run.stats(f"{name}:update[weight]", step=step).update_ratio for step in (0, last - 1)]
    print(f"  {name}: {ratios[0]:.4f} {ratios[1]:.4f}")
run.save("digits.safetensors")  # `torchtap stats digits.safetensors` opens it anywhere.
