"""Statistics in W&B, MLflow and Aim, each the real package in its offline mode."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchtap as tt
from torchtap.integrations.aim_log import AimLog
from torchtap.integrations.mlflow_log import MlflowLog
from torchtap.integrations.statistics_log import StatisticsLog
from torchtap.integrations.wandb_log import STEP, WandbLog

pytestmark = [
    pytest.mark.slow,
    # Of the packages, on import.
    pytest.mark.filterwarnings("ignore"),
]
BAD = 3


def train(log: StatisticsLog, *, model: nn.Module | None = None) -> tt.Run:
    """Six steps from 100 on, one of them with a batch of NaN and a loss that is infinite."""
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(8, 32), nn.ReLU())
    with tt.watch(model, "*:output,param", to=[tt.Stats(), log]) as w:
        for number in range(6):
            w.step(100 + number)
            loss = model(torch.randn(16, 8) * (math.nan if number == BAD else 1)).square().mean()
            w.log(loss=math.inf if number == BAD else loss)
    return w.run


def series_of(run: tt.Run, site: str, name: str) -> list[tuple[int, float]]:
    return list(zip(*run.over_steps(site, name), strict=True))


def alike(one: list[tuple[int, float]], other: list[tuple[int, float]]) -> bool:
    return np.array_equal(np.array(one), np.array(other), equal_nan=True)


# ---------------------------------------------------------------------- W&B


@pytest.fixture
def wandb_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    for name, value in {"MODE": "offline", "SILENT": "true", "ERROR_REPORTING": "false"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    run = wandb.init(project="test", dir=str(tmp_path))
    yield run
    run.finish()


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Rows in the log of an offline run: records in blocks of 32 KiB, as LevelDB writes them."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, at, buffer, rows = file.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        buffer += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # Whole, or the last part.
            record, buffer = Record.FromString(buffer), b""
            if record.WhichOneof("record_type") == "history":
                rows.append(
                    {
                        ".".join(one.nested_key) or one.key: json.loads(one.value_json)
                        for one in record.history.item
                    }
                )
    return rows


def test_wandb_has_the_series_at_the_steps_of_the_training(wandb_run: Any, tmp_path: Path) -> None:
    run = train(WandbLog(wandb_run, histograms=100))
    wandb_run.finish()
    rows = rows_of(tmp_path)
    assert [row["_step"] for row in rows] == [row[STEP] for row in rows] == [*range(100, 106)]
    for name in ("mean", "std", "nonfinite"):
        found = [(row[STEP], row[f"{name}/0:output"]) for row in rows]
        assert alike(found, series_of(run, "0:output", name))
    losses = [row["loss"] for row in rows]
    assert losses[BAD] == math.inf and alike(
        list(enumerate(losses)), list(enumerate(run.scalars("loss")[1]))
    )
    bins, counts = (rows[0][f"histogram/0:param[weight].{one}"] for one in ("bins", "values"))
    assert len(bins) == len(counts) + 1 and sum(counts) == 8 * 32
    assert not any(key.startswith("histogram") for key in rows[1])


def test_wandb_takes_them_also_where_the_training_logs_ahead(
    wandb_run: Any, tmp_path: Path
) -> None:
    wandb_run.log({"samples": 1}, step=100_000)  # It counts samples.
    with pytest.warns(UserWarning, match="W&B has reached step 100,000 while the watch is at"):
        train(WandbLog(wandb_run, names=["std"]))
    wandb_run.log({"samples": 2}, step=100_001)
    wandb_run.finish()
    first, second = rows_of(tmp_path)
    assert (first["samples"], second["samples"]) == (1, 2)  # None of the user's own is lost.
    assert first[STEP] == 105 and "std/0:output" in first


# ---------------------------------------------------------------------- MLflow


@pytest.fixture(params=["file", "sqlite"])
def mlflow(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any) -> Any:
    found = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    if request.param == "sqlite":
        pytest.importorskip("sqlalchemy", reason="mlflow's database needs sqlalchemy")
        pytest.importorskip("alembic", reason="mlflow's database needs alembic")
    folder = (tmp_path / "mlruns").as_uri()
    found.set_tracking_uri(f"sqlite:///{tmp_path}/m.db" if request.param == "sqlite" else folder)
    return found


def test_mlflow_has_the_series_at_the_steps_of_the_training(mlflow: Any) -> None:
    with mlflow.start_run() as active:
        run = train(MlflowLog())
    client, key = mlflow.MlflowClient(), active.info.run_id

    def history(name: str) -> list[tuple[int, float]]:
        return sorted((one.step, one.value) for one in client.get_metric_history(key, name))

    for name in ("mean", "std", "nonfinite"):
        assert alike(history(f"{name}/0:output"), series_of(run, "0:output", name))
    assert alike(history("std/0:param.weight."), series_of(run, "0:param[weight]", "std"))
    assert history("loss")[BAD][1] >= 1.7e308
    with mlflow.start_run() as second:
        assert MlflowLog().write(run) == 6
    key = second.info.run_id
    assert alike(history("std/0:output"), series_of(run, "0:output", "std"))


def test_mlflow_takes_any_name_and_more_numbers_than_one_batch_holds(mlflow: Any) -> None:
    hostile = {"<b>": nn.Linear(8, 8), "b ": nn.Linear(8, 8), "x" * 1000: nn.Linear(8, 8)}
    model = nn.Sequential()
    for name, module in hostile.items():
        model.add_module(name, module)
    model.extend(nn.ReLU() for _ in range(300))
    with mlflow.start_run() as active:
        run = train(MlflowLog(names=["mean", "std", "absmax", "l2"]), model=model)
    metrics = mlflow.get_run(active.info.run_id).data.metrics
    assert len(metrics) == 4 * len(run.sites) + 1 > 1000


def test_mlflow_without_a_run_says_so(mlflow: Any) -> None:
    with pytest.raises(tt.InputError, match=r"none is: begin one with mlflow.start_run\(\)"):
        train(MlflowLog())


# ---------------------------------------------------------------------- Aim


def test_aim_has_the_series_at_the_steps_of_the_training(tmp_path: Path) -> None:
    aim = pytest.importorskip("aim", reason="aim is not installed")
    from aim.storage.context import Context

    own = aim.Run(repo=str(tmp_path), system_tracking_interval=None, capture_terminal_logs=False)
    run = train(AimLog(own, histograms=100))

    def points(sequence: Any) -> list[tuple[int, Any]]:
        steps, (values, *_) = sequence.data.items_list()
        return list(zip(steps, values, strict=True))

    context = Context({"subset": "train", "site": "0:output"})
    for name in ("mean", "std", "nonfinite"):
        assert alike(points(own.get_metric(name, context)), series_of(run, "0:output", name))
    losses = points(own.get_metric("loss", Context({})))
    assert losses[BAD] == (100 + BAD, math.inf)
    weights = Context({"subset": "train", "site": "0:param[weight]"})
    ((step, found),) = points(own.get_distribution_sequence("histogram", weights))
    assert step == 100 and sum(found.weights) == 8 * 32
    own.close()
