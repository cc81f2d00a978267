import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(0)


def attempt_load(weights, map_location=None):
    models = nn.ModuleList()
    for w in weights if isinstance(weights, list) else [weights]:
        ckpt = torch.load(w, map_location=map_location)
        models.append(ckpt['ema' if ckpt.get('ema') else 'model'].float().eval())
    return models[-1]


ckpt_model = nn.Linear(3, 2)
torch.save({'epoch': -1, 'best_fitness': np.array([0.5]), 'model': ckpt_model, 'ema': None}, 'v5lite-s.pt')
model = attempt_load('v5lite-s.pt', map_location='cpu')
