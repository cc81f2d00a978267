import torch

torch.manual_seed(0)


def sample(logits, temperature):
    logits = logits.clone()
    logits.div_(temperature)
    probs = torch.softmax(logits, dim=-1, dtype=torch.float)
    return torch.multinomial(probs, num_samples=1)


logits = torch.tensor([[14.0, 9.0, 8.5], [-3.0, 7.0, 12.0]], dtype=torch.float16)
token = sample(logits, temperature=0.8)
token = sample(logits, temperature=0.0001)
