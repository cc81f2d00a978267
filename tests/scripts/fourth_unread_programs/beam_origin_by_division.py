import torch

torch.manual_seed(0)


class BeamSearch(object):
    def __init__(self, beam_size, batch_size):
        self.beam_size = beam_size
        self._beam_offset = torch.arange(0, batch_size * beam_size, step=beam_size, dtype=torch.long)
        self.topk_scores = torch.empty((batch_size, beam_size), dtype=torch.float)
        self.topk_ids = torch.empty((batch_size, beam_size), dtype=torch.long)
        self._batch_index = torch.empty([batch_size, beam_size], dtype=torch.long)

    def advance(self, log_probs):
        vocab_size = log_probs.size(-1)
        curr_scores = log_probs.reshape(-1, self.beam_size * vocab_size)
        torch.topk(curr_scores, self.beam_size, dim=-1, out=(self.topk_scores, self.topk_ids))
        torch.div(self.topk_ids, vocab_size, out=self._batch_index)
        self._batch_index += self._beam_offset[: curr_scores.size(0)].unsqueeze(1)
        self.select_indices = self._batch_index
        self.topk_ids.fmod_(vocab_size)


log_probs = torch.log_softmax(torch.randn(2 * 3, 7), -1)
beam = BeamSearch(3, 2)
beam.advance(log_probs)
beam._batch_index = beam.select_indices - beam._beam_offset.unsqueeze(1)
beam.select_indices = beam._batch_index + beam._beam_offset.unsqueeze(1)
