import torch
import torch.nn as nn

torch.manual_seed(0)


class BiLSTM(nn.Module):
    def __init__(self, hidden_dim, vocab_size):
        super().__init__()
        self.embedding_0 = nn.Embedding(num_embeddings=vocab_size, embedding_dim=2, padding_idx=3)
        self.lstm = nn.LSTM(2, hidden_dim, bidirectional=True, batch_first=True)

    def forward(self, x):
        return self.lstm(self.embedding_0(x))[0]


vocab = {"a": 0, "b": 1, "c": 2, "<pad>": 3}
model = BiLSTM(4, len(vocab) - 1)
out = model(torch.tensor([[0, 2, 1, 3], [1, 1, 3, 3]]))
