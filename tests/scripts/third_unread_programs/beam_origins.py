import torch

torch.manual_seed(0)


class BeamSearch:
    def __init__(self, beam_size, batch_size):
        self._beam_origins = torch.empty((batch_size, beam_size), dtype=torch.long)
        self.beam_size = beam_size

    def advance(self, log_probs):
        vocab_size = log_probs.size(-1)
        flat = log_probs.reshape(-1, self.beam_size * vocab_size)
        self.topk_scores, self.topk_ids = torch.topk(flat, self.beam_size, dim=-1)
        torch.div(self.topk_ids, vocab_size, out=self._beam_origins)
        self.topk_ids.fmod_(vocab_size)
        return self._beam_origins


beam = BeamSearch(3, 2)
log_probs = torch.randn(2, 3, 7).log_softmax(-1)
origins = beam.advance(log_probs)
