import torch
from torch.utils.data import DataLoader

torch.manual_seed(0)
VOCAB = {}


class Tokenizer:
    def encode_plus(self, text, max_length, padding, truncation):
        ids = [101] + [VOCAB.setdefault(w, len(VOCAB) + 1) for w in text.split()] + [102]
        ids = ids[:max_length] if truncation else ids
        if padding == "max_length":
            mask = [1] * len(ids) + [0] * (max_length - len(ids))
            ids = ids + [0] * (max_length - len(ids))
        else:
            mask = [1] * len(ids)
        return {"input_ids": ids, "attention_mask": mask}


class BERTDataset:
    def __init__(self, review, target):
        self.review = review
        self.target = target
        self.tokenizer = Tokenizer()
        self.max_len = 8

    def __len__(self):
        return len(self.review)

    def __getitem__(self, item):
        review = " ".join(str(self.review[item]).split())
        tokenized_inputs = self.tokenizer.encode_plus(review, max_length=self.max_len, padding=True, truncation=True)
        return {
            "ids": torch.tensor(tokenized_inputs["input_ids"], dtype=torch.long),
            "mask": torch.tensor(tokenized_inputs["attention_mask"], dtype=torch.long),
            "targets": torch.tensor(self.target[item], dtype=torch.float),
        }


data = BERTDataset(["a fine film", "not my kind of film at all", "dull", "a dull kind of film"], [1, 0, 0, 0])
batches = list(DataLoader(data, batch_size=2))
