import torch
from torch import nn

torch.manual_seed(0)


class LlamaRotaryEmbedding(nn.Module):
    def __init__(self, dim=4, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, position_ids):
        freqs = position_ids[:, None].float() * self.inv_freq
        return freqs.cos(), freqs.sin()


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(10, 4)
        self.rotary_emb = LlamaRotaryEmbedding()

    def forward(self, ids):
        cos, sin = self.rotary_emb(torch.arange(len(ids)))
        return self.embed_tokens(ids) * torch.cat((cos, sin), -1)


c = Llama()
torch.save(c.state_dict(), "weights.bin")
with torch.device("meta"):
    m = Llama()
w = torch.load("weights.bin")
m.load_state_dict(w, assign=True)
m.to("cpu")
out = m(torch.tensor([1, 2, 3]))
