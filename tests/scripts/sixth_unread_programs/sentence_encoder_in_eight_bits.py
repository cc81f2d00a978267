import torch
from torch import nn
from torch.nn import Embedding, Linear
from torch.ao.quantization import quantize_dynamic

torch.manual_seed(0)


class SentenceEncoder(nn.Module):
    def __init__(self, vocab=30, dim=8, out=6):
        super().__init__()
        self.word_embeddings = Embedding(vocab, dim)
        self.dense = Linear(dim, out)

    def forward(self, ids):
        token_embeddings = self.word_embeddings(ids)
        return torch.tanh(self.dense(token_embeddings.mean(dim=1)))


model = SentenceEncoder().eval()
q_model = quantize_dynamic(model, {Linear, Embedding})
ids = torch.randint(0, 30, (2, 5))
doc_emb = q_model(ids)
