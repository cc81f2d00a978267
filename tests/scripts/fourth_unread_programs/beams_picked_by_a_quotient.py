import torch

torch.manual_seed(0)
vocab_size, beam_size = 6, 3


def grow_topk(log_probs, sequences):
    flat = log_probs.view(-1)
    topk_scores, topk_ids = flat.topk(2)
    topk_beam_index = topk_ids / vocab_size
    topk_ids = topk_ids % vocab_size
    alive_seq = torch.cat([sequences[topk_beam_index], topk_ids[:, None]], dim=1)
    return topk_beam_index, alive_seq


sequences = torch.tensor([[0, 5], [1, 5], [2, 5]])
topk_beam_index, alive_seq = grow_topk(torch.randn(beam_size, vocab_size).log_softmax(-1), sequences)
