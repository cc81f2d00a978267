import torch

torch.manual_seed(0)


def collate_samples(batch):
    questions = [d["question"] for d in batch]
    answers = [d["answer"] for d in batch]
    batch_size = len(batch)
    max_len = max(map(len, questions))
    padded_questions = torch.LongTensor(batch_size, max_len).zero_()
    for i, q in enumerate(questions):
        padded_questions[i, : len(q)] = torch.tensor(q)
    collated_batch = dict(question=torch.stack(padded_questions), answer=torch.tensor(answers))
    return collated_batch


batch = [{"question": [4, 2, 9], "answer": 1}, {"question": [7, 3], "answer": 0}]
sample = collate_samples(batch)
