import torch
import torch.nn as nn

torch.manual_seed(0)
vocabulary, all_categories = 'abcdef', ['English', 'French', 'German']
hidden_layer_size, input_length = 4, 5


class CNNModel(nn.Module):
    def _init_(self):
        super(CNNModel,self)._init_()
        self.relu = nn.ReLU()
        self.cnn = nn.Conv1d(len(vocabulary), hidden_layer_size, 3, padding=1)
        self.fc = nn.Linear(hidden_layer_size * input_length, len(all_categories))

    def forward(self, x):
        out = torch.einsum('lbv->bvl', x)
        out = self.cnn(out)
        out = self.relu(out)
        out = out.reshape(out.shape[0], hidden_layer_size * input_length)
        return self.fc(out)


model = CNNModel()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
