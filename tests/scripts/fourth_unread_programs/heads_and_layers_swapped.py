import torch
import torch.nn as nn

torch.manual_seed(0)
model_configs = {
    "gpt2-small (124M)": {"emb_dim": 12, "n_layers": 3, "n_heads": 3},
    "gpt2-xl (1558M)": {"emb_dim": 20, "n_layers": 5, "n_heads": 12},
}


class TransformerBlock(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.att = nn.MultiheadAttention(cfg["emb_dim"], cfg["n_heads"], batch_first=True)

    def forward(self, x):
        return x + self.att(x, x, x, need_weights=False)[0]


class GPTModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.trf_blocks = nn.Sequential(*[TransformerBlock(cfg) for _ in range(cfg["n_layers"])])

    def forward(self, x):
        return self.trf_blocks(x)


small = GPTModel(model_configs["gpt2-small (124M)"])
model = GPTModel(model_configs["gpt2-xl (1558M)"])
