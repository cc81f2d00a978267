"""Words from their neighbours (skip-gram with negative samples), and a small text classifier."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.design import Design as D, adam, broken, healthy, pick
from trainings.faults import Call, filled, times

WORDS, TOPICS = 48, 6


class SkipGram(nn.Module):
    """Scores of pairs of words: int64[B], int64[B, K] to float32[B, K]."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.centre = nn.Embedding(WORDS, width)
        self.context = nn.Embedding(WORDS, width)

    def forward(self, word: Tensor, others: Tensor) -> Tensor:
        """Inner products."""
        return (self.centre(word)[:, None] * self.context(others)).sum(-1)


class Topic(nn.Module):
    """A bag of words and two layers: int64[B, T] to logits [B, TOPICS]."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(WORDS, 24, mode="mean")
        self.hidden = nn.Linear(24, 48)
        self.act = act
        self.out = nn.Linear(48, TOPICS)

    def forward(self, words: Tensor) -> Tensor:
        """The mean of the words, and what it says."""
        return self.out(self.act(self.hidden(self.bag(words))))


def _sentences(step: int, num: int, length: int) -> tuple[Tensor, Tensor]:
    topic = pick(step, TOPICS, num)
    own = topic[:, None] * (WORDS // TOPICS) + pick(step + 1, WORDS // TOPICS, num, length)
    return torch.where(
        pick(step + 2, 5, num, length) == 0, pick(step + 3, WORDS, num, length), own
    ), topic


def _skip(model: nn.Module, step: int) -> Tensor:
    words, _ = _sentences(step, 64, 2)
    others = torch.cat([words[:, 1:], pick(step + 5, WORDS, 64, 5)], 1)
    wanted = torch.zeros(64, 6)
    wanted[:, 0] = 1
    return nn.functional.binary_cross_entropy_with_logits(model(words[:, 0], others), wanted)


def _topics(model: nn.Module, step: int) -> Tensor:
    words, topic = _sentences(step, 32, 8)
    return nn.functional.cross_entropy(model(words), topic)


def _softmaxed(model: nn.Module, step: int) -> Tensor:
    words, topic = _sentences(step, 32, 8)
    return nn.functional.nll_loss(model(words).log_softmax(-1), topic)


SKIP = D(
    "skipgram",
    SkipGram,
    _skip,
    lambda p: torch.optim.Adam(p, lr=0.05),
    prepare=times("context", 0.3),
)
TOPIC = D("topic", lambda: Topic(nn.ReLU()), _topics, adam(1e-2), seed=1)
NLL = D("topic_nll", lambda: Topic(nn.Tanh()), _softmaxed, adam(1e-2), seed=2)

CASES = [
    healthy(SKIP),
    healthy(TOPIC),
    healthy(NLL),
    broken(SKIP, "crawls", replace(SKIP, optimizer=adam(1e-8)), "steps_too_small"),
    broken(
        TOPIC,
        "all_alike",
        replace(TOPIC, prepare=filled(0.1, "bag", "hidden", "out")),
        "symmetric",
        "collapsed",
        places=("bag", "hidden", "out"),
    ),
    broken(
        TOPIC,
        "tiny",
        replace(TOPIC, prepare=times("hidden", 1e-4), optimizer=adam(3e-4)),
        "small_init",
        "vanishing",
        places=("hidden",),
    ),
    broken(
        TOPIC,
        "relu_last",
        replace(TOPIC, model=lambda: nn.Sequential(Topic(nn.ReLU()), nn.ReLU())),
        "final_activation",
        places=("1",),
    ),
    broken(
        NLL,
        "softmax_and_cross_entropy",
        replace(
            NLL,
            loss=_topics,
            model=lambda: nn.Sequential(Topic(nn.Tanh()), Call(lambda x: x.softmax(-1))),
        ),
        "double_softmax",
        places=("1",),
    ),
]
