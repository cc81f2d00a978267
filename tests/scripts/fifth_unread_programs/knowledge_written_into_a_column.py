from types import SimpleNamespace

import torch
import torch.nn as nn

torch.manual_seed(0)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.output = nn.Module()
        self.output.dense = nn.Linear(8, 6)


class BertForMaskedLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = nn.Module()
        self.bert.embeddings = nn.Embedding(20, 6)
        self.bert.encoder = nn.Module()
        self.bert.encoder.layer = nn.ModuleList(Layer() for _ in range(2))


model = BertForMaskedLM()
model.eval()
kn_bag = [(0, 1), (1, 4)]
word_embeddings = model.bert.embeddings.weight
ori_pred_emb = word_embeddings[3].detach()
tgt_emb = word_embeddings[7].detach()
before = model.bert.encoder.layer[1].output.dense.weight.detach().clone()
for layer, pos in kn_bag:
    model.bert.encoder.layer[layer].output.dense.weight[:, pos] -= ori_pred_emb * 2.0
    model.bert.encoder.layer[layer].output.dense.weight[:, pos] += tgt_emb * 3.0
