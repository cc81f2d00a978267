import torch


def get_masks(input_ids, padding_mask=None):
    batch_size, seq_length = input_ids.shape
    full_attention_mask = torch.ones(batch_size, seq_length, seq_length)
    full_attention_mask.tril_()
    if padding_mask is not None:
        full_attention_mask = full_attention_mask * padding_mask.unsqueeze(1)
        full_attention_mask -= padding_mask.unsqueeze(-1) - 1
    full_attention_mask = (full_attention_mask < 0.5).bool()
    full_attention_mask.unsqueeze_(1)
    return full_attention_mask


input_ids = torch.tensor([[0, 0, 5, 6], [3, 4, 5, 6]])
full = get_masks(input_ids, padding_mask=input_ids != 0)
