import torch
import torch.nn as nn

torch.manual_seed(0)


class StatefulLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("v_mem", torch.zeros(2, 4))

    def reset_states(self):
        for buffer in self.buffers():
            buffer.zero_()

    def forward(self, input_spikes):
        outputs = []
        for step in range(input_spikes.shape[1]):
            self.v_mem = 0.9 * self.v_mem + torch.tanh(self.linear(input_spikes[:, step]))
            outputs.append(self.v_mem)
        return torch.stack(outputs, 1)


model = StatefulLayer()
losses = []
for _ in range(2):
    model.reset_states()
    loss = model(torch.rand(2, 5, 4)).pow(2).mean()
    loss.backward()
    losses.append(loss.item())
