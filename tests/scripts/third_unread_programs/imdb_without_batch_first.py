import torch
import torch.nn as nn

torch.manual_seed(0)
MAXFEATURES, EMBEDSIZE, NUMHIDDEN = 50, 12, 10


class SymbolModule(nn.Module):
    def __init__(self):
        super(SymbolModule, self).__init__()
        self.embedding = nn.Embedding(num_embeddings=MAXFEATURES, embedding_dim=EMBEDSIZE)
        self.lstm = nn.LSTM(input_size=EMBEDSIZE, hidden_size=NUMHIDDEN)
        self.l_out = nn.Linear(NUMHIDDEN, 2)

    def forward(self, x):
        embeds = self.embedding(x)
        _batch_size = embeds.size(1)
        h0 = torch.zeros(1, _batch_size, NUMHIDDEN)
        c0 = torch.zeros(1, _batch_size, NUMHIDDEN)
        out, _ = self.lstm(embeds, (h0, c0))
        return self.l_out(out[-1])


sym = SymbolModule()
criterion = nn.CrossEntropyLoss()
data = torch.randint(0, MAXFEATURES, (16, 15))
target = torch.randint(0, 2, (16,))
output = sym(data)
loss = criterion(output, target)
loss.backward()
