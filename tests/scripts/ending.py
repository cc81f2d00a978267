"""Trains some steps, and then ends as it is told."""
import atexit
import os
import signal
import sys
import time

import torch
from torch import nn

how = sys.argv[1]
sys.argv = ["reassigned"]
atexit.register(print, "atexit")
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    loss = model(torch.randn(3, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, repr(loss.item()), flush=True)
if how == "raise":
    raise ValueError("the data is gone")
if how == "exit":
    sys.exit(7)
if how == "message":
    sys.exit("it cannot go on")
if how == "os._exit":
    os._exit(9)
if how == "interrupt":
    raise KeyboardInterrupt
if how in ("SIGINT", "SIGTERM"):
    print("ready", flush=True)
    while True:
        loss = model(torch.randn(3, 4)).square().mean()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
