import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(0)
vocab_size = 40
special = {"[PAD]": 40}
embed_tokens = nn.Embedding(vocab_size, 8)
prompts = [torch.tensor([3, 7, 12, 5]), torch.tensor([9, 39])]
input_ids = pad_sequence(prompts, batch_first=True, padding_value=special["[PAD]"])
attention_mask = input_ids != special["[PAD]"]
inputs_embeds = embed_tokens(input_ids)
pooled = (inputs_embeds * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)
