"""Edit: which channels of the first convolution does the answer depend on?

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
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(100):
    rows = torch.randint(len(pictures), (64,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(pictures[rows]), classes[rows]).backward()
    optimizer.step()


def accuracy() -> float:
    """Share of all pictures that are classified right."""
    with torch.no_grad():
        return (model(pictures).argmax(1) == classes).float().mean().item()


print(f"all channels      {accuracy():.1%}")
for channel in range(8):
    # The model is edited inside of the block and unchanged after it.
    with tt.edit(model, "1", tt.edits.zero(at={1: [channel]})):
        print(f"without channel {channel} {accuracy():.1%}")
print(f"all channels      {accuracy():.1%}")
