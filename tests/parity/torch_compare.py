"""Loads exported networks into PyTorch and compares their outputs with ours.

usage: torch_compare.py FOLDER    one folder for each case in it: model.py, model.safetensors, vectors.safetensors
                                  (input, output and, where there is a loss, targets and loss)

A line for each case that differs; the last line counts them.
"""
import importlib.util
import os
import sys

import torch

TOLERANCE = 1e-5  # outputs are of the order of 1; the worst seen was 3e-6


def open_module(path):
    spec = importlib.util.spec_from_file_location("model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_close(what, got, wanted):
    if got.shape != wanted.shape:
        raise ValueError(f"{what} is {tuple(got.shape)}, ours {tuple(wanted.shape)}")
    worst = (got - wanted).abs().max().item()
    if not worst <= TOLERANCE:
        raise ValueError(f"{what} is {worst:.3g} away from ours, whose largest is {wanted.abs().max().item():.3g}")


def check_names(model, tensors):
    state = model.state_dict()
    if set(state) != set(tensors):
        raise ValueError(f"names differ: {set(state) ^ set(tensors)}")
    for name, tensor in tensors.items():
        if state[name].shape != tensor.shape or state[name].dtype != tensor.dtype:
            raise ValueError(f"{name} is {state[name].shape} {state[name].dtype}, in the file {tensor.shape}")


def compare(folder):
    module = open_module(os.path.join(folder, "model.py"))
    weights = os.path.join(folder, "model.safetensors")
    model = module.load(weights)
    if model.training:
        raise ValueError("not in evaluation mode")
    check_names(model, module.read_safetensors(weights))
    vectors = module.read_safetensors(os.path.join(folder, "vectors.safetensors"))
    with torch.no_grad():
        output = model(vectors["input"])
        check_close("the output", output, vectors["output"])
        if "loss" in vectors:
            check_close("the loss", model.loss(output, vectors["targets"]), vectors["loss"].reshape(()))
    model.train()  # gradients flow, and a step of training goes through
    model(vectors["input"]).sum().backward() if list(model.parameters()) else model(vectors["input"])


def main():
    torch.set_num_threads(1)
    folders = sorted(entry.path for entry in os.scandir(sys.argv[1]) if entry.is_dir())
    n_bad = 0
    for folder in folders:
        try:
            compare(folder)
        except Exception as error:  # whatever a generated program may raise
            n_bad += 1
            print(f"{folder}: {type(error).__name__}: {error}")
    print(f"{len(folders)} networks compared with PyTorch {torch.__version__}, {n_bad} differ")
    return 1 if n_bad or not folders else 0


sys.exit(main())
