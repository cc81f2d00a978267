"""The notes inside of programs that others wrote: trainers, ranks, notebooks, tasks, threads."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import torchtap as tt
from torchtap.failures.added_notes import HEAD

pytestmark = pytest.mark.filterwarnings("ignore")  # Those of other packages.


class Net(nn.Module):
    """Its head takes five features and gets three, unless it ends before."""

    def __init__(self, *, is_cut: bool = False) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.head = nn.Linear(5, 2)
        self.is_cut = is_cut

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        h = self.fc(x)
        if self.is_cut:
            return {"loss": h.detach().sum()}
        return {"loss": self.head(h).sum()}


HEAD_LINE = Net.forward.__code__.co_firstlineno + 4
CUT_LINE = HEAD_LINE - 1


class Samples(Dataset[dict[str, Tensor]]):
    def __init__(self, width: Callable[[int], int] = lambda at: 4) -> None:
        self.width = width

    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        return {"x": torch.ones(self.width(at)), "labels": torch.tensor(0)}


def note_of(function: Callable[[], Any], model: nn.Module | None = None) -> str:
    """The only note of ours on what a function raises, and on what led to it."""
    with pytest.raises(BaseException) as caught, tt.explain_errors(model):
        function()
    found = list(notes(caught.value))
    assert len(found) == 1, found
    return " ".join(found[0].split())


def notes(error: BaseException | None) -> Iterator[str]:
    if error is not None:
        yield from (one for one in getattr(error, "__notes__", ()) if one.startswith(HEAD))
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                yield from notes(one)
        yield from notes(error.__cause__ or error.__context__)


# --- trainers ---------------------------------------------------------------------------------


def trainer(folder: Path, model: nn.Module, data: Dataset[Any], **how: Any) -> Any:
    transformers: Any = pytest.importorskip("transformers")
    settings = transformers.TrainingArguments(
        str(folder),
        max_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
    )
    return transformers.Trainer(model, settings, train_dataset=data, **how)


def here(line: int) -> str:
    return f"test_in_real_settings.py:{line}"


@pytest.mark.slow
def test_in_a_trainer_of_transformers_the_module_and_the_line_of_the_model(tmp_path: Path) -> None:
    note = note_of(trainer(tmp_path, Net(), Samples()).train)
    assert "head (Linear) takes 5 features" in note
    assert "call self.head(h)" in note
    assert here(HEAD_LINE) in note
    assert "model.head = nn.Linear(3, 2)" in note


@pytest.mark.slow
def test_in_a_trainer_of_transformers_the_cut_is_that_of_the_model(tmp_path: Path) -> None:
    note = note_of(trainer(tmp_path, Net(is_cut=True), Samples()).train)
    assert f"{here(CUT_LINE)}: h.detach()" in note
    assert "transformers/trainer.py" not in note.partition("cut ")[2]


@pytest.mark.slow
def test_in_a_trainer_of_transformers_samples_that_do_not_stack(tmp_path: Path) -> None:
    note = note_of(trainer(tmp_path, Net(), Samples(lambda at: 4 + at)).train)
    assert "The samples of a batch have different shapes" in note
    assert "data_collator to a Trainer" in note


def doubled(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {"x": torch.stack([one["x"] for one in samples]).double()}


@pytest.mark.slow
def test_in_a_trainer_of_transformers_what_the_collator_makes(tmp_path: Path) -> None:
    note = note_of(trainer(tmp_path, Net(), Samples(), data_collator=doubled).train)
    assert "fc (Linear) has parameters of float32, and its input is float64" in note


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "told", "way"),
    [
        (torch.arange(6) + 38, "transformer.wte (Embedding) has 40 rows", "vocabulary"),
        (torch.arange(12), "transformer.wpe (Embedding) has 8 rows", "8 positions at most"),
    ],
)
def test_a_gpt2_that_is_given_what_it_has_no_rows_for(
    tokens: Tensor, told: str, way: str, tmp_path: Path
) -> None:
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=16, n_layer=1, n_head=2, vocab_size=40, n_positions=8, bos_token_id=0, eos_token_id=0
    )

    class Tokens(Samples):
        def __getitem__(self, at: int) -> dict[str, Tensor]:
            return {"input_ids": tokens, "labels": tokens}

    note = note_of(trainer(tmp_path, transformers.GPT2LMHeadModel(config), Tokens()).train)
    assert told in note
    assert way in note


def fit(step: Callable[[Any, dict[str, Tensor]], Tensor]) -> None:
    lightning: Any = pytest.importorskip("lightning.pytorch")

    class Fitted(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(is_cut=step is wide)

        def training_step(self, batch: dict[str, Tensor], number: int) -> Tensor:
            h = step(self, batch).detach()
            return h.sum() if step is narrow else h

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    lightning.Trainer(
        max_steps=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Fitted(), DataLoader(Samples(), batch_size=2))


def narrow(module: Any, batch: dict[str, Tensor]) -> Tensor:
    loss: Tensor = module.net(**batch)["loss"]
    return loss


def wide(module: Any, batch: dict[str, Tensor]) -> Tensor:
    return narrow(module, batch)


@pytest.mark.slow
def test_in_a_trainer_of_lightning_the_module_and_the_line_of_the_model() -> None:
    note = note_of(lambda: fit(narrow))
    assert "net.head (Linear) takes 5 features" in note
    assert here(HEAD_LINE) in note


@pytest.mark.slow
def test_in_a_trainer_of_lightning_the_cut_of_the_training_step() -> None:
    note = note_of(lambda: fit(wide))
    assert f"{here(fit.__code__.co_firstlineno + 9)}: step(self, batch).detach()" in note


# --- ranks ------------------------------------------------------------------------------------

RANKS = """
import sys, torch, torchtap as tt
from torch import distributed, nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.used(x)

distributed.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(Net())

def train():
    for _ in range(2):
        net(torch.ones(2, 4)).sum().backward()

if "explained" in sys.argv:
    with tt.explain_errors():
        train()
train()
"""


ONE_RAISES = """
from datetime import timedelta

import torch
from torch import distributed, nn

import torchtap as tt

distributed.init_process_group("gloo", timeout=timedelta(seconds=30))
net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
with tt.explain_errors():
    for step in range(3):
        width = 5 if distributed.get_rank() == 1 and step == 1 else 4
        net(torch.ones(2, width)).sum().backward()
"""
SIZES_DIFFER = """
from datetime import timedelta

from torch import distributed, nn

import torchtap as tt

distributed.init_process_group("gloo", timeout=timedelta(seconds=30))
with tt.explain_errors():
    nn.parallel.DistributedDataParallel(nn.Linear(4, 3 + distributed.get_rank()))
"""


def run_ranks(folder: Path, *words: str, source_text: str = "") -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(source_text or RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    source = Path(tt.__file__).parents[1]
    return subprocess.run(
        [*command, "--nproc-per-node=2", str(script), *words],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_under_torchrun_the_note_stands_below_the_error_of_its_rank(tmp_path: Path) -> None:
    plain, explained = run_ranks(tmp_path), run_ranks(tmp_path, "explained")
    assert plain.returncode == explained.returncode != 0
    lines = explained.stderr.splitlines()
    ranks = [one[:8] for one in lines if "torchtap: The last backward gave no gradient" in one]
    assert ranks
    assert len(set(ranks)) == len(ranks)  # torchrun may end the other rank before it has said it.
    assert set(ranks) <= {"[rank0]:", "[rank1]:"}
    assert any("gave no gradient to spare.weight, spare.bias" in one for one in lines)
    assert not any("torchtap:" in one for one in plain.stderr.splitlines())


@pytest.mark.slow
def test_a_rank_that_raises_and_the_one_that_waits_have_notes_of_their_own(tmp_path: Path) -> None:
    done = run_ranks(tmp_path, source_text=ONE_RAISES)
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if "torchtap: " in line]
    assert any(one.startswith("[rank1]: torchtap: 0 (Linear) takes 4 features") for one in said)
    others = [one for one in said if one.startswith("[rank0]:")]  # It may be ended before.
    assert all("This process waited for another one, which has ended" in one for one in others)


@pytest.mark.slow
def test_models_whose_sizes_differ_between_ranks_are_told(tmp_path: Path) -> None:
    done = run_ranks(tmp_path, source_text=SIZES_DIFFER)
    assert done.returncode != 0
    said = " ".join(done.stderr.replace("[rank1]: ", "").split())
    assert (
        "parameter 0, counted from 0, has the sizes [4, 4] in rank 1 and others in rank 0" in said
    )


# --- notebooks --------------------------------------------------------------------------------


def test_in_a_notebook_the_note_stands_below_the_error_and_names_the_cell() -> None:
    interactive: Any = pytest.importorskip("IPython.core.interactiveshell")
    shell = interactive.InteractiveShell.instance(colors="nocolor")
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            shell.run_cell(
                "import torch, torchtap as tt\nfrom torch import nn\n"
                "net = nn.Sequential(nn.Linear(4, 3), nn.Linear(8, 2))\n"
                "def run(x):\n    return net(x)\n",
                store_history=True,
            )
            shell.run_cell(
                "f = tt.features(net, '0'); f", store_history=True
            )  # Now _ holds the model.
            cell = "x = torch.ones(2, 4)\nwith tt.explain_errors():\n    run(x)\n"
            shell.run_cell(cell, store_history=True)
    finally:
        interactive.InteractiveShell.clear_instance()
    text = shown.getvalue()
    assert text.index("mat1 and mat2") < text.index("torchtap: 1 (Linear) takes 8")
    assert "line        Cell In[1]:5, in run: return net(x)" in text
    assert "from        Cell In[3]:3: run(x)" in text
    assert ": net[1] = nn.Linear(3, 2)" in text


# --- what programs do with exceptions ---------------------------------------------------------


def run_net() -> Any:
    return Net()(torch.ones(5, 4))


def test_what_the_program_raises_again_has_one_note() -> None:
    def handled() -> None:
        try:
            run_net()
        except RuntimeError:
            raise

    assert "head (Linear)" in note_of(handled)


def test_what_the_program_handles_inside_the_block_goes_no_further() -> None:
    with tt.explain_errors():
        try:
            run_net()
        except RuntimeError as error:
            caught = error
    assert not hasattr(caught, "__notes__")


def test_what_is_raised_from_an_error_of_pytorch_leaves_that_its_note() -> None:
    def wrapped() -> None:
        try:
            run_net()
        except RuntimeError as error:
            raise ValueError("broken") from error

    assert "head (Linear)" in note_of(wrapped)


def test_an_error_of_a_task_in_a_group_gets_its_note() -> None:
    async def fail() -> None:
        run_net()

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    assert "head (Linear)" in note_of(lambda: asyncio.run(both()))


def test_an_error_that_a_thread_hands_over_gets_its_note() -> None:
    def threaded() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(run_net).result()

    note = note_of(threaded)
    assert "head (Linear)" in note
    assert here(HEAD_LINE) in note


def failing(at: int) -> int:
    torch.ones(2) @ torch.ones(3)
    return 4


@pytest.mark.slow
def test_an_error_of_pytorch_in_a_worker_of_a_loader_is_explained() -> None:
    loader = DataLoader(Samples(failing), num_workers=1)
    note = note_of(lambda: list(loader))
    assert "A product sums over" in note
    line = failing.__code__.co_firstlineno + 1
    assert f"in worker {here(line)}, in failing: torch.ones(2) @ torch.ones(3)" in note.replace(
        str(Path(__file__).parent) + os.sep, ""
    ).replace("tests/failures/", "")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_of_what_is_compiled_the_line_is_told(backend: str) -> None:
    compiled: Any = torch.compile(Net(), backend=backend)
    try:
        assert here(HEAD_LINE) in note_of(lambda: compiled(torch.ones(5, 4)))
    finally:
        torch.compiler.reset()
