import torch
import torch.nn as nn

torch.manual_seed(0)


class Config:
    def __init__(self, **kwargs):
        self.__dict__.update(kwargs)


class Bert(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.word_embeddings = nn.Embedding(50, hidden)

    def forward(self, input_ids, attention_mask):
        return self.word_embeddings(input_ids) * attention_mask[..., None]


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.bert = Bert()
        self.encoder = nn.LSTM(config.bert_hid_size, config.lstm_hid_size // 2, num_layers=1,
                               batch_first=True, bidirectional=True)

    def forward(self, bert_inputs, pieces2word):
        bert_embs = self.bert(input_ids=bert_inputs, attention_mask=bert_inputs.ne(0).float())
        length = pieces2word.size(1)
        min_value = torch.min(bert_embs).item()
        _bert_embs = bert_embs.unsqueeze(1).expand(-1, length, -1, -1)
        _bert_embs = torch.masked_fill(_bert_embs, pieces2word.eq(0).unsqueeze(-1), min_value)
        word_reps, _ = torch.max(_bert_embs, dim=2)
        word_reps, _ = self.encoder(word_reps)
        return word_reps


config = Config(**{'bert_hid_size': 32, 'lstm_hid_size': 16})
model = Model(config)
bert_inputs = torch.tensor([[2, 7, 8, 9, 3, 0], [2, 5, 6, 4, 11, 3]])
pieces2word = torch.zeros(2, 4, 6)
for i in range(4):
    pieces2word[:, i, i + 1] = 1
word_reps = model(bert_inputs, pieces2word)
