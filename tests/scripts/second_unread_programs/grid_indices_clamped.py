import torch

torch.manual_seed(0)


def build_targets(p, targets):
    indices = []
    gain = torch.ones(7)
    for pi in p:
        gain[2:6] = torch.tensor(pi.shape)[[3, 2, 3, 2]]
        t = targets * gain
        b, c = t[:, :2].long().T
        gxy = t[:, 2:4]
        gij = gxy.long()
        gi, gj = gij.T
        a = t[:, 6].long()
        indices.append((b, a, gj.clamp_(0, gain[3] - 1), gi.clamp_(0, gain[2] - 1)))
    return indices


p = [torch.zeros(2, 3, 10, 12, 85), torch.zeros(2, 3, 5, 6, 85)]
p = [pi.permute(0, 1, 4, 2, 3)[:, :, 0] for pi in p]
targets = torch.rand(4, 7)
targets[0, 2:4] = 1.0                      # on the border of the picture
indices = build_targets(p, targets)
