import numpy as np
import torch

torch.manual_seed(0)


def foreground_parts(tokens, threshold=1.0):
    """The tokens of every picture whose norm is high, for the clustering of its parts."""
    parts = []
    for feats in tokens:
        norms = feats.norm(dim=1).numpy()
        idx = [i for i, n in enumerate(norms) if n > threshold]
        idx = torch.from_numpy(np.array(idx))
        parts.append(feats[idx])
    return parts


tokens = torch.randn(3, 9, 4)
tokens[1] *= 0.1
parts = foreground_parts(tokens)
