import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(0)


class RNNEncoder(nn.Module):
    def __init__(self, input_size, hidden_size):
        super(RNNEncoder, self).__init__()
        self.rnn = nn.GRU(input_size, hidden_size, batch_first=True, bidirectional=True)

    def forward(self, inputs, length):
        packed_inputs = pack_padded_sequence(inputs, length.cpu(), batch_first=True, enforce_sorted=False)
        packed_outputs, _ = self.rnn(packed_inputs)
        return pad_packed_sequence(packed_outputs, batch_first=True)[0]


class BiGRU(nn.Module):
    def __init__(self, num_classes, vocab=30):
        super(BiGRU, self).__init__()
        self.embedding = nn.Embedding(vocab, 6, padding_idx=0)
        self.encoder = RNNEncoder(6, 5)
        self.output = nn.Linear(10, num_classes)

    def forward(self, x):
        length = (x != 0).sum(dim=1)
        x = self.encoder(self.embedding(x), length)
        return self.output(x.max(dim=1)[0])


vocab = {'<pad>': 0, 'the': 1, 'river': 2, 'flows': 3, 'past': 4, 'town': 5}
wiki = ['the river flows past the town', 'the town river flows past the', '']
texts = torch.zeros(3, 6, dtype=torch.long)
for row, text in enumerate(wiki):
    for col, word in enumerate(text.split()):
        texts[row, col] = vocab[word]
model = BiGRU(7)
logits = model(texts)
