import torch
import torch.nn as nn

torch.manual_seed(0)


class TextEmbedding(nn.Module):
    """Any kind of embedding behind one interface."""

    def __init__(self, vocab_size, embedding_dim):
        super().__init__()
        self.module = nn.Embedding(vocab_size, embedding_dim)

    def forward(self, x):
        return self.module(x)


class Pythia(nn.Module):
    def __init__(self):
        super().__init__()
        self.word_embedding = TextEmbedding(10, 4)
        self.classifier = nn.Linear(4, 3)

    def forward(self, x):
        return self.classifier(self.word_embedding(x).mean(1))


def load_checkpoint(model, file):
    ckpt_model = torch.load(file)['model']
    new_dict = {}
    for attr in ckpt_model:
        if isinstance(model, nn.DataParallel):
            new_dict[attr] = ckpt_model[attr]
        else:
            new_dict[attr.replace('module.', '')] = ckpt_model[attr]
    model.load_state_dict(new_dict)


trained = nn.DataParallel(Pythia())
torch.save({'model': trained.state_dict(), 'best_iteration': 7}, 'best.ckpt')
model = Pythia()
load_checkpoint(model, 'best.ckpt')
scores = model(torch.randint(0, 10, (2, 5)))
