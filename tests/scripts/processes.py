"""Starts processes while it trains, and pickles a class of its own."""
import multiprocessing
import os
import pickle
import sys

import torch
from torch import nn


class Config:
    def __init__(self, lr):
        self.lr = lr


def work(config):
    return os.getpid() != parent, config.lr


def count(n):
    return n * n


parent = os.getpid()


def main():
    global parent
    torch.manual_seed(0)
    assert pickle.loads(pickle.dumps(Config(0.1))).lr == 0.1
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=Config(0.1).lr)
    for step in range(4):
        loss = model(torch.randn(3, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, repr(loss.item()), flush=True)
        if step == 1 and "fork" in sys.argv:
            pid = os.fork()
            if not pid:
                model(torch.randn(3, 4)).sum().backward()
                optimizer.step()
                sys.exit(0)
            print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            with multiprocessing.get_context("fork").Pool(2) as pool:
                print(pool.map(work, [Config(1), Config(2)]))
        if step == 1 and "spawn" in sys.argv:
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                print(pool.map(count, range(3)), [c.lr for c in pool.map(Config, [3])])


if __name__ == "__main__":
    main()
