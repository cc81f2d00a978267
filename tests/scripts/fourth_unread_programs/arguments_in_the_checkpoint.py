import argparse

import torch
import torch.nn as nn

torch.manual_seed(0)


def load_checkpoint(path, restrict=True):
    return torch.load(path, map_location='cpu', weights_only=restrict)


parser = argparse.ArgumentParser()
parser.add_argument('--arch', default='conformer')
torch.save({'args': parser.parse_args([]), 'model': nn.Linear(3, 4).state_dict()}, 'multitask_unity.pt')

checkpoint = load_checkpoint('multitask_unity.pt')
args = checkpoint['args']
model = nn.Linear(3, 4)
model.load_state_dict(checkpoint['model'])
