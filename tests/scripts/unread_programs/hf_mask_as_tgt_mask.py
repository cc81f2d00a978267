import torch
import torch.nn as nn

torch.manual_seed(0)
layer = nn.TransformerDecoderLayer(d_model=8, nhead=2, batch_first=True, dropout=0.0)
decoder = nn.TransformerDecoder(layer, num_layers=1)
memory = torch.randn(2, 3, 8)
embedded = torch.randn(2, 5, 8)
attention_mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])      # of the tokenizer: 1 for a token, 0 for padding
out = decoder(embedded, memory, tgt_mask=attention_mask.bool())
