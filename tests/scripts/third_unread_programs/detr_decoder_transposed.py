import torch
import torch.nn as nn

torch.manual_seed(0)
layer = nn.TransformerDecoderLayer(d_model=8, nhead=2, dim_feedforward=16, dropout=0.0, batch_first=True)
decoder = nn.TransformerDecoder(layer, num_layers=1)
input_embed = torch.randn(2, 7, 8)
memory = torch.randn(7, 9, 8)
queries = input_embed.transpose(0, 1)
num_seq = queries.shape[0]
attn_mask = torch.triu(torch.ones((num_seq, num_seq)), diagonal=1).bool()
memory = torch.randn(2, 9, 8).transpose(0, 1)
out_dec = decoder(queries, memory, tgt_mask=attn_mask)
