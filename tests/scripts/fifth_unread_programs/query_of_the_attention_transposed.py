import torch
import torch.nn as nn

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self, dimensions):
        super(Attention, self).__init__()
        self.linear_in = nn.Linear(dimensions, dimensions, bias=False)
        self.linear_out = nn.Linear(dimensions * 2, dimensions, bias=False)
        self.softmax = nn.Softmax(dim=-1)
        self.tanh = nn.Tanh()

    def forward(self, query, context):
        batch_size, output_len, dimensions = query.size()
        query_len = context.size(1)
        query = query.view(batch_size * output_len, dimensions)
        query = self.linear_in(query)
        query = query.view(batch_size, output_len, dimensions)
        attention_scores = torch.bmm(query, context.transpose(1, 2).contiguous())
        attention_scores = attention_scores.view(batch_size * output_len, query_len)
        attention_weights = self.softmax(attention_scores).view(batch_size, output_len, query_len)
        mix = torch.bmm(attention_weights, context)
        combined = torch.cat((mix, query), dim=2)
        return self.tanh(self.linear_out(combined)), attention_weights


decoder = nn.GRU(4, 4)
encoder = nn.GRU(4, 4, batch_first=True)
context, hidden = encoder(torch.randn(2, 5, 4))
decoded, _ = decoder(torch.randn(3, 2, 4), hidden)
query = decoded.transpose(0, 1)
attention = Attention(4)
output, weights = attention(query, context)
