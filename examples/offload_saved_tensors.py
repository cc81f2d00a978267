"""Offload: train with what autograd saves for backward on disk, and get the same gradients."""

import copy

import torch
from torch import nn

import torchtap as tt

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
model = nn.TransformerEncoder(layer, 4)
twin = copy.deepcopy(model)
batch = torch.randn(8, 64, 64)

print(tt.saved_report(model, batch))  # What is held until backward, by the module that saves it.

with tt.offload("disk", model=model, min_bytes=1 << 14) as offload:
    model(batch).square().mean().backward()
offload.flush()  # Wait for what is still being written, to count it.
print()
print(offload.report())

twin(batch).square().mean().backward()
pairs = zip(model.parameters(), twin.parameters(), strict=True)
print("\ngradients equal to the bit:", all(torch.equal(a.grad, b.grad) for a, b in pairs))
