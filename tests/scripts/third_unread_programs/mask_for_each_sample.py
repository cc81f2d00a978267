import torch
import torch.nn as nn

torch.manual_seed(0)
bsz, tgt_len, src_len, num_heads = 3, 4, 5, 2
mha = nn.MultiheadAttention(8, num_heads, batch_first=True)
query = torch.randn(bsz, tgt_len, 8)
key = torch.randn(bsz, src_len, 8)
attn_mask = torch.zeros(bsz, tgt_len, src_len, dtype=torch.bool)
attn_mask[1, :, 3:] = True
out, weights = mha(query, key, key, attn_mask=attn_mask)
