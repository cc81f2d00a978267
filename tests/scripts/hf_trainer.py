import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)


class Corpus(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(0, 64, (size, 16), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main():
    set_seed(42)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config)
    training_args = TrainingArguments(
        output_dir="out",
        max_steps=6,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model, args=training_args, train_dataset=Corpus(48), eval_dataset=Corpus(8)
    )
    trainer.remove_callback(PrinterCallback)  # It prints seconds.
    trainer.train()
    for entry in trainer.state.log_history:
        print({k: v for k, v in entry.items() if "runtime" not in k and "per_second" not in k})


if __name__ == "__main__":
    main()
