import torch
import torch.nn as nn

torch.manual_seed(0)


class RNNDecoderState:
    def __init__(self, hidden_size, batch):
        self.hidden = (torch.zeros(1, batch, hidden_size), torch.zeros(1, batch, hidden_size))

    @property
    def _all(self):
        return self.hidden

    def detach(self):
        for h in self._all:
            h.detach()

    def update_state(self, rnnstate):
        self.hidden = rnnstate


decoder = nn.LSTM(4, 6)
generator = nn.Linear(6, 3)
dec_state = RNNDecoderState(6, 2)
losses = []
for trunc in range(3):
    tgt = torch.randn(5, 2, 4)
    outputs, rnnstate = decoder(tgt, dec_state.hidden)
    dec_state.update_state(rnnstate)
    loss = generator(outputs).logsumexp(-1).mean()
    loss.backward()
    losses.append(loss.item())
    dec_state.detach()
