"""Watch a training: measure what every layer does, find the layer that learns too fast.

Needs scikit-learn, for its pictures of handwritten digits.
"""

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

# Statistics of every output, its gradient, and of what the optimizer changes, in each step.
with tt.watch(model, ["*:output,grad_output,param,update", "!.:*"], to=tt.Stats()) as w:
    for _ in range(60):
        rows = torch.randint(len(pictures), (64,))
        loss = nn.functional.cross_entropy(model(pictures[rows]), classes[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        w.step()

print(f"loss {loss:.3f}\n")
print(w.run.table("*:output,grad_output"))
print("\nupdate relative to the weight, first and last step")
for name in ("0", "3", "5"):
    ratios = [w.run.stats(f"{name}:update[weight]", step=step).update_ratio for step in (0, 59)]
    print(f"  {name}: {ratios[0]:.4f} {ratios[1]:.4f}")
w.run.save("digits.safetensors")  # `torchtap stats digits.safetensors` opens it anywhere.
