import torch

torch.manual_seed(0)


def next_token(next_logits, banned, temperature):
    next_logits = next_logits.clone()
    next_logits[:, banned] = -torch.inf
    if temperature == 0:
        next_ids = next_logits.argmax(dim=-1, keepdim=True)
    else:
        probs = torch.softmax(next_logits / temperature, dim=-1)
        next_ids = torch.multinomial(probs, num_samples=1)
    return next_ids


logits = torch.tensor([[0.5, 0.1, -torch.inf, 0.2]])
free = next_token(logits, [1], 0.8)
ids = next_token(logits, [0, 1, 3], 0.8)
