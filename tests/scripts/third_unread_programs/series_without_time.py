import torch
import torch.nn as nn

torch.manual_seed(0)


class EncoderLSTM(nn.Module):
    def __init__(self, input_size, hidden_size, n_layers=1):
        super().__init__()
        self.hidden_size = hidden_size
        self.n_layers = n_layers
        self.lstm = nn.LSTM(input_size, hidden_size, n_layers, batch_first=True)

    def forward(self, inputs, hidden):
        output, hidden = self.lstm(inputs, hidden)
        return output, hidden

    def init_hidden(self, batch_size=1):
        return (torch.zeros(self.n_layers, batch_size, self.hidden_size), torch.zeros(self.n_layers, batch_size, self.hidden_size))


temporal_encoder = EncoderLSTM(1, 6)
x_time = torch.randn(4, 24, 1)
outputs = []
for batch in x_time:
    h = temporal_encoder.init_hidden(1)
    encoder_output, h = temporal_encoder(batch, h)
    outputs.append(encoder_output)
