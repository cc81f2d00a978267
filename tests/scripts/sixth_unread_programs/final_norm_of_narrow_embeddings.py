import torch
import torch.nn as nn

torch.manual_seed(0)


class MatrixMultiply(nn.Module):
    def __init__(self, tensor, transpose=False):
        super().__init__()
        self.tensor = tensor
        self.transpose = transpose

    def forward(self, x):
        tensor = self.tensor
        return x @ (tensor.t() if self.transpose else tensor)


class ReformerLM(nn.Module):
    def __init__(self, num_tokens, dim, emb_dim=None):
        super().__init__()
        emb_dim = emb_dim or dim
        self.token_emb = nn.Embedding(num_tokens, emb_dim)
        self.to_model_dim = nn.Linear(emb_dim, dim)
        self.reformer = nn.TransformerEncoderLayer(dim, 2, 32, dropout=0.0, batch_first=True)
        self.from_model_dim = nn.Linear(dim, emb_dim)
        self.out = nn.Sequential(
            nn.LayerNorm(dim),
            MatrixMultiply(self.token_emb.weight, transpose=True),
        )

    def forward(self, x):
        x = self.to_model_dim(self.token_emb(x))
        x = self.reformer(x)
        x = self.from_model_dim(x)
        return self.out(x)


model = ReformerLM(num_tokens=20, dim=16, emb_dim=8)
tokens = torch.randint(0, 20, (2, 12))
logits = model(tokens)
