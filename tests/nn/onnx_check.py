"""Lets onnx check models: that they are whole, and of the version they say.

usage: onnx_check.py FOLDER    one folder for each case in it: model.onnx
"""
import os
import sys

import onnx


def main():
    folders = sorted(entry.path for entry in os.scandir(sys.argv[1]) if entry.is_dir())
    for folder in folders:
        model = onnx.load(os.path.join(folder, "model.onnx"))
        onnx.checker.check_model(model, full_check=True)
        if [(opset.domain, opset.version) for opset in model.opset_import] != [("", 13)]:
            sys.exit(f"{folder}: opset {model.opset_import}")
    print(f"{len(folders)} models checked by onnx {onnx.__version__}")


main()
