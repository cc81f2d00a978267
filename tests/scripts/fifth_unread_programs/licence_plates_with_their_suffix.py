import os

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(0)
alphabet = 'ABCDEFGHJKLMNPQRSTUVWXYZ0123456789-'


class StrLabelConverter(object):
    def __init__(self, alphabet):
        self.dict = {char: i + 1 for i, char in enumerate(alphabet)}

    def encode(self, text):
        length = []
        result = []
        for item in text:
            length.append(len(item))
            result.append(torch.IntTensor([self.dict[char] for char in item if char in self.dict]))
        return pad_sequence(result, batch_first=True), torch.IntTensor(length)


paths = ['data/0001_ABC1234.jpg', 'data/0002_KLM-5678.jpg']
labels = []
for path in paths:
    label = os.path.basename(path).split('_')[1]
    labels.append(label)

converter = StrLabelConverter(alphabet)
criterion = nn.CTCLoss(zero_infinity=True)
batch_size = len(labels)
preds = torch.randn(26, batch_size, len(alphabet) + 1).log_softmax(2)
text, length = converter.encode(labels)
preds_size = torch.IntTensor([preds.size(0)] * batch_size)
cost = criterion(preds, text, preds_size, length) / batch_size
