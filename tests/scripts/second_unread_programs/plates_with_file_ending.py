import torch
import torch.nn.functional as F

torch.manual_seed(0)
alphabet = "ABCDEFGHJKLMNPQRSTUVWXYZ0123456789-"


def encode(names):
    text = torch.zeros(len(names), 8, dtype=torch.long)
    length = []
    for row, name in enumerate(names):
        ids = [alphabet.index(char) + 1 for char in name if char in alphabet]
        text[row, :len(ids)] = torch.tensor(ids)
        length.append(len(name))
    return text, torch.tensor(length)


names = ["ABC-1234.jpg", "KLM-987.jpg"]
text, length = encode(names)
preds = F.log_softmax(torch.randn(20, 2, len(alphabet) + 1), 2)
preds_size = torch.tensor([20, 20])
cost = F.ctc_loss(preds, text, preds_size, length) / 2
