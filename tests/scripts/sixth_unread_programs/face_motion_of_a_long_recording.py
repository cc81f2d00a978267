import math
import torch
import torch.nn as nn

torch.manual_seed(0)


def init_biased_mask(n_head, max_seq_len, period):
    slopes = [2 ** (-8 / n_head * (i + 1)) for i in range(n_head)]
    bias = torch.arange(0, max_seq_len, period).unsqueeze(1).repeat(1, period).view(-1) // period
    bias = -torch.flip(bias, dims=[0])
    alibi = torch.zeros(max_seq_len, max_seq_len)
    for i in range(max_seq_len):
        alibi[i, :i + 1] = bias[-(i + 1):]
    alibi = torch.tensor(slopes).unsqueeze(1).unsqueeze(1) * alibi.unsqueeze(0)
    mask = (torch.triu(torch.ones(max_seq_len, max_seq_len)) == 1).transpose(0, 1)
    mask = mask.float().masked_fill(mask == 0, float('-inf')).masked_fill(mask == 1, 0.0)
    return mask.unsqueeze(0) + alibi


class CodeTalker(nn.Module):
    def __init__(self, vertice_dim=12, feature_dim=8):
        super().__init__()
        self.vertice_map = nn.Linear(vertice_dim, feature_dim)
        self.biased_mask = init_biased_mask(n_head=2, max_seq_len=24, period=4)
        layer = nn.TransformerDecoderLayer(feature_dim, 2, 2 * feature_dim, batch_first=True)
        self.transformer_decoder = nn.TransformerDecoder(layer, num_layers=1)
        self.vertice_map_r = nn.Linear(feature_dim, vertice_dim)

    def predict(self, hidden_states, template):
        emb = self.vertice_map(template).unsqueeze(1)
        for i in range(hidden_states.shape[1]):
            T = emb.shape[1]
            tgt_mask = self.biased_mask[:, :T, :T].clone().detach()
            out = self.transformer_decoder(emb, hidden_states, tgt_mask=tgt_mask)
            new = out[:, -1:]
            emb = torch.cat((emb, new), 1)
        return self.vertice_map_r(out) + template.unsqueeze(1)


model = CodeTalker().eval()
audio_feature = torch.randn(1, 30, 8)
template = torch.randn(1, 12)
with torch.no_grad():
    motion = model.predict(audio_feature, template)
