import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence


class SemanticTransformer(nn.Module):
    def __init__(self, num_semantic_tokens=20, dim=6, pad_id=-1):
        super().__init__()
        self.pad_id, self.eos_id = pad_id, num_semantic_tokens
        self.semantic_embedding = nn.Embedding(num_semantic_tokens + 1, dim)

    def forward(self, sequences):
        ids = pad_sequence(sequences, batch_first=True, padding_value=self.pad_id)
        tokens = self.semantic_embedding(ids)
        mask = ids != self.pad_id
        return tokens, mask


torch.manual_seed(0)
transformer = SemanticTransformer()
sequences = [torch.tensor([3, 1, 4, 1]), torch.tensor([0, 20])]
tokens, mask = transformer(sequences)
