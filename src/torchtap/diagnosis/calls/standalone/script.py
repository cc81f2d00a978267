"""Runs the call in the file beside the script, and says whether it is equal to the bit."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from torchtap.diagnosis.calls.standalone.read_call import UnreadableError, read_call
from torchtap.diagnosis.calls.standalone.run_again import Result, differences, run_again


def main(file: str) -> int:
    """Exit code: 0 where every bit is equal, 1 where one differs, 2 where it cannot be read."""
    path = Path(file).with_suffix(".safetensors")
    if not path.is_file():
        print(f"There is no {path}, which was written together with this script.", file=sys.stderr)
        return 2
    with safe_open(path, "pt") as opened:
        text = (opened.metadata() or {}).get("call", "")
    try:
        call = read_call(text, load_file(path))
    except UnreadableError as error:
        print(f"The call cannot be made again: {error}.", file=sys.stderr)
        return 2
    names = ("output", "buffers", "arriving", "inputs", "parameters")
    recorded = Result(**{name: call[name] for name in names})
    arguments = call["args"], call["kwargs"]
    again = run_again(call["module"], arguments, call["around"], recorded.arriving)
    compared = differences(recorded, again)
    wrong = {name: how for name, how in compared.items() if how}
    kind, where = type(call["module"]).__name__, call["path"] or "."
    ways = "forward and backward" if recorded.arriving else "forward"
    print(f"Call {call['call']} of {where} ({kind}), {ways}")
    for note in call["notes"]:
        print(f"Note: {note}.")
    for name, how in wrong.items():
        print(f"{name}: {how}")
    if call["around"]["torch"] != torch.__version__:
        print(f"Recorded with torch {call['around']['torch']}; this is {torch.__version__}.")
    if wrong:
        print(f"{len(wrong)} of {len(compared)} tensors differ.")
        return 1
    print(f"Equal to the bit: {len(compared)} of {len(compared)} tensors.")
    return 0
