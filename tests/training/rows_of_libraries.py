"""Trainings by other ways than a loop, and with tensors and modules of other libraries."""

from __future__ import annotations

import importlib
import tempfile
from typing import Any

import pytest
import torch
from networks import ConvNet, classes, pictures, tokens, vectors
from probe import EVERY_PORT, Probe
from row import Rows, refused, said
from rows_plain import NO_BACKWARD, NO_GRADIENT, NOT_CALLED, UNUSED, train
from torch import Tensor, nn
from torch.nn import functional as F

LIBRARIES = Rows()
IN_TRANSFORM = "it ran inside a torch.func transform"


def needs(name: str) -> Any:
    """A library, without which the row is left out."""
    return pytest.importorskip(name, reason=f"{name} is not installed", exc_type=ImportError)


def mlp() -> nn.Sequential:
    """Six numbers to four."""
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Make the optimizer of the parameters that can be trained."""
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05)


# ---------------------------------------------------------------------- torch.func, fx, export


@LIBRARIES("functional_call", edited="0")
def functional_call_with_the_models_own_parameters(probe: Probe) -> None:
    model = mlp()
    probe.attach(model, vectors(0))
    params: Any = dict(model.named_parameters())

    def compute(k: int) -> Tensor:
        return torch.func.functional_call(model, params, (vectors(k),)).square().mean()

    train(probe, model, sgd(model), compute)


@LIBRARIES(
    "torch.func: grad, vmap",
    cells={name: said(IN_TRANSFORM) for name in ("Memory", "Stats")}
    | {"edit": said("transform")}
    | {name: said("where saved-tensor hooks are forbidden") for name in ("offload", "together")},
    edited="0",
    absent=(
        "in step 0 no call of the model was seen",
        NO_BACKWARD,
        IN_TRANSFORM,
        "taken when the model",
        NO_GRADIENT,
    ),
)
def gradients_of_torch_func(probe: Probe) -> None:
    model = mlp()
    optimizer = sgd(model)
    probe.attach(model, vectors(0))
    probe.optimizes(optimizer)
    params = dict(model.named_parameters())

    def compute(params: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(model, params, (x,)).square().mean()

    for k in range(3):
        found = torch.func.grad(compute)(params, vectors(k))
        for name, param in params.items():
            param.grad = found[name]
        optimizer.step()
        probe.step(params["0.weight"].detach().clone())


@LIBRARIES("fx and export", edited="_0")
def a_graph_module_of_fx(probe: Probe) -> None:
    model = mlp()
    traced = torch.fx.symbolic_trace(nn.Sequential(*model))
    for name, module in list(traced.named_children()):
        delattr(traced, name)
        traced.add_module(f"_{name}", module)
    for node in traced.graph.nodes:
        if node.op == "call_module":
            node.target = f"_{node.target}"
    traced.recompile()
    probe.attach(traced, vectors(0))
    train(probe, traced, sgd(traced), lambda k: traced(vectors(k)).square().mean())


@LIBRARIES("fx and export", edited="0")
def an_exported_and_unflattened_model(probe: Probe) -> None:
    exported = torch.export.export(mlp(), (vectors(0),), strict=False)
    model = torch.export.unflatten(exported)
    probe.attach(model, vectors(0))
    train(probe, model, sgd(model), lambda k: model(vectors(k)).square().mean())


@LIBRARIES("fx and export", edited="0", absent=("it ran while torch.export was tracing",))
def a_model_that_is_exported_while_it_trains(probe: Probe) -> None:
    """The graph is the one of a model that nothing is attached to."""
    model = mlp()
    probe.attach(model, vectors(0))

    def compute(k: int) -> Tensor:
        exported = torch.export.export(model, (vectors(0),), strict=False)
        names = [str(node.target) for node in exported.graph.nodes]
        assert not [name for name in names if "torchtap" in name]
        loss = model(vectors(k)).square().mean()
        return loss + 0 * len(names)

    train(probe, model, sgd(model), compute)


@LIBRARIES(
    "torch.export(strict=True)",
    cells=dict.fromkeys(("Memory", "edit", "offload", "together"), refused("torchtap: ")),
    edited="0",
)
def a_model_that_is_exported_strictly_while_it_trains(probe: Probe) -> None:
    model = mlp()
    probe.attach(model, vectors(0))

    def compute(k: int) -> Tensor:
        if not probe.is_eager:
            torch.compiler.reset()
            torch.export.export(model, (vectors(0),), strict=True)
        return model(vectors(k)).square().mean()

    train(probe, model, sgd(model), compute)


# ---------------------------------------------------------------------- quantised


@LIBRARIES("torch.ao, quantised", edited="0", absent=("quantize", NOT_CALLED))
def torch_ao_training_that_knows_of_quantisation(probe: Probe) -> None:
    quantization: Any = importlib.import_module("torch.ao.quantization")
    model = mlp()
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    model.train()
    quantization.prepare_qat(model, inplace=True)
    probe.attach(model, vectors(0))
    train(probe, model, sgd(model), lambda k: model(vectors(k)).square().mean())


@LIBRARIES(
    "torch.ao, quantised",
    cells={"edit": said("gradient|require")},
    edited="body.0",
    without=("offload",),
    absent=(UNUSED, NOT_CALLED),
    warns=True,
)
def a_head_on_a_dynamically_quantised_body(probe: Probe) -> None:
    quantization: Any = importlib.import_module("torch.ao.quantization")
    body = quantization.quantize_dynamic(mlp(), {nn.Linear}, dtype=torch.qint8)
    model = nn.Sequential()
    model.add_module("body", body)
    model.add_module("head", nn.Linear(4, 3))
    probe.attach(model, vectors(0))
    train(probe, model, sgd(model), lambda k: model(vectors(k)).square().mean())


def _torchao(probe: Probe, config: str, **how: Any) -> None:
    needs("torchao")
    torchao: Any = importlib.import_module("torchao.quantization")
    body = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32))
    torchao.quantize_(body, getattr(torchao, config)(**how))
    model = nn.Sequential()
    model.add_module("body", body)
    model.add_module("head", nn.Linear(32, 3))
    probe.attach(model, vectors(0))
    train(probe, model, sgd(model), lambda k: model(vectors(k)).square().mean())


NO_WAY = "what the module returned does not depend on it"
QUANTISED = (NO_BACKWARD, NO_GRADIENT, NO_WAY)


@LIBRARIES("torchao, quantised", edited="body.1", absent=QUANTISED)
def a_head_on_a_body_with_int8_weights(probe: Probe) -> None:
    _torchao(probe, "Int8WeightOnlyConfig")


@LIBRARIES("torchao, quantised", edited="body.1", absent=QUANTISED)
def a_head_on_a_body_with_float8_weights(probe: Probe) -> None:
    _torchao(probe, "Float8WeightOnlyConfig")


@LIBRARIES("torchao, quantised", edited="head", absent=(*QUANTISED, UNUSED))
def a_head_on_a_body_with_int8_weights_and_activations(probe: Probe) -> None:
    _torchao(probe, "Int8DynamicActivationInt8WeightConfig")


@LIBRARIES("torchao, trained quantised", edited="0")
def torchao_training_that_knows_of_quantisation(probe: Probe) -> None:
    needs("torchao")
    torchao: Any = importlib.import_module("torchao.quantization")
    qat: Any = importlib.import_module("torchao.quantization.qat")
    model = mlp()
    base = torchao.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=getattr(torch, "int4"),  # noqa: B009 - mypy does not know it
        weight_granularity=torchao.granularity.PerGroup(2),
    )
    torchao.quantize_(model, qat.QATConfig(base, step="prepare"))
    probe.attach(model, vectors(0))
    train(probe, model, sgd(model), lambda k: model(vectors(k)).square().mean())


@LIBRARIES("torchao, 8-bit optimizer", edited="0", warns=True)
def torchao_optimizer_of_8_bits(probe: Probe) -> None:
    needs("torchao")
    optim: Any = importlib.import_module("torchao.optim")
    model = mlp()
    probe.attach(model, vectors(0))
    optimizer = optim.AdamW8bit(model.parameters(), 0.01)
    train(probe, model, optimizer, lambda k: model(vectors(k)).square().mean())


@LIBRARIES("bitsandbytes, quantised", edited="body.1", absent=QUANTISED)
def a_head_on_a_body_of_bitsandbytes(probe: Probe) -> None:
    bitsandbytes = needs("bitsandbytes")
    body = nn.Sequential(
        bitsandbytes.nn.Linear4bit(6, 32, compute_dtype=torch.float32),
        nn.ReLU(),
        bitsandbytes.nn.Linear4bit(32, 32, compute_dtype=torch.float32),
    ).to("cpu")
    model = nn.Sequential()
    model.add_module("body", body)
    model.add_module("head", nn.Linear(32, 3))
    probe.attach(model, vectors(0))
    train(probe, model, sgd(model), lambda k: model(vectors(k)).square().mean())


# ---------------------------------------------------------------------- trainers


def _language_model() -> Any:
    transformers = needs("transformers")
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


class Sentences(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Eight rows of tokens, which are their own labels."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        found = tokens(index, num=1)[0]
        return {"input_ids": found, "labels": found}

    def __len__(self) -> int:
        return 8


def _train_by_hf(probe: Probe, *, evaluates: bool = False, **how: Any) -> None:
    transformers = needs("transformers")
    needs("accelerate")
    model = _language_model()

    class Steps(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
        def on_train_begin(self, *_: Any, **kwargs: Any) -> None:
            batch = tokens(0)
            probe.attach(model, input_ids=batch, labels=batch, loss=lambda found: found.loss)

        def on_step_end(self, *_: Any, **kwargs: Any) -> None:
            probe.step(0.0)

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, max_steps=3, per_device_train_batch_size=2, report_to=[], use_cpu=True,
            save_strategy="no", disable_tqdm=True, logging_strategy="no", **how,
        )  # fmt: skip
        data = Sentences()
        trainer = transformers.Trainer(
            model, arguments, train_dataset=data, eval_dataset=data, callbacks=[Steps()]
        )
        if evaluates:
            evaluate = trainer.evaluate

            def marked(*args: Any, **kwargs: Any) -> Any:
                with probe.evaluation():
                    return evaluate(*args, **kwargs)

            trainer.evaluate = marked
        trainer.train()


HF: Any = {
    "edited": "transformer.h.1.mlp",
    "absent": (UNUSED, NOT_CALLED, "it is held by an object"),
    "warns": True,
}


@LIBRARIES("HF Trainer", **HF)
def hf_trainer(probe: Probe) -> None:
    _train_by_hf(probe)


@LIBRARIES("HF Trainer", **HF)
def hf_trainer_with_accumulation(probe: Probe) -> None:
    _train_by_hf(probe, gradient_accumulation_steps=2)


@LIBRARIES("HF Trainer", **HF)
def hf_trainer_in_bf16(probe: Probe) -> None:
    _train_by_hf(probe, bf16=True)


@LIBRARIES("HF Trainer", **{**HF, "edited": "transformer.h.1"})
def hf_trainer_with_checkpoints(probe: Probe) -> None:
    _train_by_hf(
        probe,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
    )


@LIBRARIES("HF Trainer", **HF)
def hf_trainer_that_evaluates(probe: Probe) -> None:
    _train_by_hf(probe, evaluates=True, eval_strategy="steps", eval_steps=1)


# The model makes a mask of its own only where it is compiled.
NO_MASKS = [EVERY_PORT, "!*:input[attention_mask]", "!transformer.h.?:input[2]"]


@LIBRARIES(
    "HF Trainer",
    where=NO_MASKS,
    compiles=True,
    tolerance=1e-4,
    **{**HF, "absent": (*HF["absent"], "inside torch.compile", "compiled, and run uncompiled")},
)
def hf_trainer_that_compiles(probe: Probe) -> None:
    backend: Any = {} if probe.is_eager else {"torch_compile_backend": "aot_eager"}
    _train_by_hf(probe, torch_compile=not probe.is_eager, **backend)


@LIBRARIES(
    "PEFT, LoRA",
    edited="base_model.model.transformer.h.1.mlp",
    absent=(UNUSED, NOT_CALLED, NO_GRADIENT, NO_WAY, "it is held by an object"),
)
def lora_of_peft(probe: Probe) -> None:
    peft = needs("peft")
    model = peft.get_peft_model(
        _language_model(), peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    )
    batch = tokens(0)
    probe.attach(model, input_ids=batch, labels=batch, loss=lambda found: found.loss)
    train(probe, model, sgd(model), lambda k: model(input_ids=tokens(k), labels=tokens(k)).loss)


@LIBRARIES("Accelerate", edited="inner")
def accelerate_with_accumulation_attached_before(probe: Probe) -> None:
    accelerate = needs("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = ConvNet()
    probe.attach(model, pictures(0))
    called, optimizer = accelerator.prepare(model, sgd(model))
    losses = []
    for k in range(4):
        with accelerator.accumulate(called):
            loss = F.cross_entropy(called(pictures(k)), classes(k))
            losses.append(loss.detach().clone())
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(called.parameters(), 1.0)
            optimizer.step()
            if accelerator.sync_gradients:
                probe.step(losses)
            optimizer.zero_grad()


@LIBRARIES("Lightning", edited="net.inner", absent=("not called",), warns=True)
def lightning_with_validation(probe: Probe) -> None:
    lightning = needs("lightning")

    class Lit(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = ConvNet()

        def training_step(self, batch: Any, index: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, index: int) -> None:
            with probe.evaluation():
                self.net(batch[0])

        def configure_optimizers(self) -> Any:
            return sgd(self)

        def on_fit_start(self) -> None:
            probe.attach(self)
            probe.proves(self.net, pictures(0))

        def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
            probe.step(outputs["loss"])

    data: Any = [(pictures(k), classes(k)) for k in range(3)]
    loader: Any = torch.utils.data.DataLoader(data, batch_size=None)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, val_check_interval=1,
        num_sanity_val_steps=0, barebones=False,
    )  # fmt: skip
    trainer.fit(Lit(), loader, loader)
