import torch
from torch import nn

torch.manual_seed(0)


class AlbertEmbeddings(nn.Module):
    def __init__(self, vocab_size=50, hidden=8, max_position_embeddings=16):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, hidden)
        self.token_type_embeddings = nn.Embedding(2, hidden)
        self.register_buffer("token_type_ids", torch.zeros(1, max_position_embeddings, dtype=torch.long))

    def forward(self, input_ids):
        batch_size, seq_length = input_ids.shape
        buffered_token_type_ids = self.token_type_ids[:, :seq_length]
        buffered_token_type_ids_expanded = buffered_token_type_ids.expand(batch_size, seq_length)
        return self.word_embeddings(input_ids) + self.token_type_embeddings(buffered_token_type_ids_expanded)


bert = AlbertEmbeddings()
texts = torch.randint(50, (1, 23))
embedded = bert(texts)
