import torch
import torch.nn as nn

torch.manual_seed(0)
inter_feat = [
    {'user_id': '0', 'item_id_list': ['0', '1', '2', '3', '4'], 'item_id': ['9']},
    {'user_id': '1', 'item_id_list': ['0', '1', '2', '3'], 'item_id': ['5']},
    {'user_id': '2', 'item_id_list': ['0', '1', '2', '3'], 'item_id': ['4']},
]


def remap(fields):
    tokens = [t for field in fields for row in inter_feat for t in row[field]]
    return ['[PAD]'] + list(dict.fromkeys(tokens))


field2id_token = {}
field2id_token['item_id_list'] = remap(['item_id_list'])
field2id_token['item_id'] = remap(['item_id'])


class NARM(nn.Module):
    def __init__(self, embedding_size=8):
        super().__init__()
        self.n_items = len(field2id_token['item_id'])
        self.item_embedding = nn.Embedding(self.n_items, embedding_size, padding_idx=0)
        self.gru = nn.GRU(embedding_size, embedding_size, batch_first=True)

    def forward(self, item_seq):
        item_seq_emb = self.item_embedding(item_seq)
        gru_out, _ = self.gru(item_seq_emb)
        return gru_out[:, -1] @ self.item_embedding.weight.T


ids = {t: i for i, t in enumerate(field2id_token['item_id_list'])}
model = NARM()
item_seq = torch.tensor([[ids[t] for t in inter_feat[0]['item_id_list']]])
scores = model(item_seq)
