"""Run the cases and operations of simulated_device_cases.py on two simulated GPUs, and print as JSON what they give."""

import ast
import json
import sys
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from simulated_device_cases import CASES, OPERATIONS
from torch import nn

warnings.simplefilter("ignore")


def run(code: str) -> str:
    """Run statements; return the value of the last one, an expression, or the first line of the error."""
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
    tree = ast.parse(code)
    last = tree.body[-1]
    try:
        if not isinstance(last, ast.Expr):
            exec(compile(tree, "case", "exec"), names)
            return "no error"
        exec(compile(ast.Module(tree.body[:-1], []), "case", "exec"), names)
        return str(eval(compile(ast.Expression(last.value), "case", "eval"), names))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def device_after(operation: str) -> str:
    """Return the device of an operation's result, or `mixed` if it refuses several devices."""
    g, h, c = torch.ones(4, 4, device="cuda:0"), torch.ones(4, 4, device="cuda:1"), torch.ones(4, 4)
    i, i4, z = torch.tensor([0, 1]), torch.zeros(4, dtype=torch.long), torch.zeros(())
    names = {"g": g, "h": h, "c": c, "i": i, "j": i.to("cuda:0"), "z": z, "s": z.to("cuda:0")}
    names |= {"i4": i4, "j4": i4.to("cuda:0"), "torch": torch, "F": F}
    try:
        return str(eval(operation, names).device)
    except Exception as error:
        return "mixed" if "same device" in str(error) else f"{type(error).__name__}: {str(error).splitlines()[0]}"


def main() -> None:
    results = {}
    for name, (code, _) in CASES.items():
        torch.cuda.set_device(0)
        results[name] = run(code)
    json.dump({"cases": results, "operations": {text: device_after(text) for text in OPERATIONS}}, sys.stdout)


main()
