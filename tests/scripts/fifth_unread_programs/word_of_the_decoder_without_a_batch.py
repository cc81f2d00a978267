import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class DecoderRNN(nn.Module):
    def __init__(self, hidden_size, output_size):
        super(DecoderRNN, self).__init__()
        self.embedding = nn.Embedding(output_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size)
        self.out = nn.Linear(hidden_size, output_size)

    def forward(self, input, hidden):
        output = self.embedding(input).view(1, 1, -1)
        output = F.relu(output)
        output, hidden = self.gru(output, hidden)
        output = F.log_softmax(self.out(output[0]), dim=1)
        return output, hidden


SOS_token = 0
decoder = DecoderRNN(6, 10)
criterion = nn.NLLLoss()
target_variable = torch.tensor([[4], [7], [2], [1]])
decoder_input = torch.tensor([[SOS_token]])
decoder_hidden = torch.zeros(1, 1, 6)
loss = 0
for di in range(4):
    decoder_output, decoder_hidden = decoder(decoder_input, decoder_hidden)
    loss += criterion(decoder_output[0], target_variable[di])
    decoder_input = target_variable[di]
loss.backward()
