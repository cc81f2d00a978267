import torch


def position_weight(aspect, text_len, seq_len):
    """How near every word of the text lies to the aspect term."""
    start, end = aspect
    aspect_end = end
    context_len = text_len
    weight = []
    for i in range(start):
        weight.append(1 - (start - i) / context_len)
    for i in range(start, aspect_end + 1):
        weight.append(0)
    for i in range(aspect_end + 1, context_len):
        weight.append(1 - (i - aspect_end) / context_len)
    for i in range(context_len, seq_len):
        weight.append(0)
    return weight


batch = [((1, 2), 5), ((3, 3), 9)]
rows = [position_weight(aspect, text_len, seq_len=8) for aspect, text_len in batch]
weights = torch.tensor(rows)
x = torch.randn(2, 8, 4)
x = weights.unsqueeze(2) * x
