import torch
import torch.nn as nn

torch.manual_seed(0)


class Tokenizer:
    def __init__(self):
        self.vocab = {'<s>': 0, '<pad>': 1, '</s>': 2, **{f'w{i}': i for i in range(3, 30)}, '<mask>': 30}
        self.bos_token_id, self.mask_token_id = 0, 30

    def __len__(self):
        return len(self.vocab)


class Bart(nn.Module):
    def __init__(self, vocab_size, d_model=8, max_positions=16):
        super().__init__()
        self.shared = nn.Embedding(vocab_size, d_model, padding_idx=1)
        self.embed_positions = nn.Embedding(max_positions, d_model)


def update_global(model, bos_id, mask_id, num_global, stride):
    u = model.shared.weight.detach().clone()
    p = model.embed_positions.weight.detach().clone()
    positions = p[:num_global * stride:stride].clone()
    positions[0] += u[bos_id]
    positions[1:] += u[mask_id].unsqueeze(0)
    return positions


tokenizer = Tokenizer()
model = Bart(vocab_size=30)
positions = update_global(model, tokenizer.bos_token_id, tokenizer.mask_token_id, 4, 2)
