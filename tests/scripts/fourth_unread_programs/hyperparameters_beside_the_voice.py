from types import SimpleNamespace

import torch
import torch.nn as nn

torch.manual_seed(0)


def change_sovits_weights(sovits_path):
    dict_s2 = torch.load(sovits_path, map_location="cpu")
    hps = dict_s2["config"]
    vq_model = nn.Linear(4, hps.model.hidden)
    vq_model.load_state_dict(dict_s2["weight"], strict=False)
    return dict_s2, hps, vq_model


HParams = SimpleNamespace(model=SimpleNamespace(hidden=6))
torch.save({"weight": nn.Linear(4, 6).state_dict(), "config": HParams}, "s2G488k.pth")
dict_s2, hps, vq_model = change_sovits_weights("s2G488k.pth")
