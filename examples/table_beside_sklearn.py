#!/usr/bin/env python3
"""A grown network on tables, beside scikit-learn's gradient boosting and its MLP, on the same rows.

    python3 examples/table_beside_sklearn.py [SEEDS]

Needs numpy and scikit-learn (Debian: python3-sklearn), and the program at build/esper or $ESPER. For each table and seed a quarter
of the rows is the test; everybody gets the same rows. scikit-learn's models are as they come; the MLP sees standardised columns,
as Esper's network does. Tables: two that scikit-learn brings along, and one generated with known structure: of 16 columns 8 matter,
and a row's class is the largest of ten sums of products of two columns, which no single column tells anything about."""
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

ESPER = os.environ.get("ESPER", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "esper"))


def products(n=12000, columns=16, classes=10, terms=3):
    rng = np.random.default_rng(11)
    x = rng.normal(size=(n, columns)).astype(np.float32)
    pairs = [[rng.choice(columns // 2, 2, replace=False) for _ in range(terms)] for _ in range(classes)]
    signs = rng.choice([-1, 1], (classes, terms))
    scores = np.stack([sum(signs[c, t] * x[:, a] * x[:, b] for t, (a, b) in enumerate(pairs[c])) for c in range(classes)], 1)
    return x, scores.argmax(1)


def split(x, y, seed):
    order = np.random.default_rng(seed).permutation(len(x))
    n = len(x) // 4
    return x[order[n:]], y[order[n:]], x[order[:n]], y[order[:n]]


def grow(parts, seed):
    with tempfile.TemporaryDirectory() as folder:
        names = ("x_train", "y_train", "x_test", "y_test")
        np.savez(os.path.join(folder, "t.npz"), **dict(zip(names, parts)))
        esper = [ESPER, "grow", "t.npz", "--seed", str(seed), "--progress", "none", "--run-dir", "run", "--cache", "kept"]
        subprocess.run(esper, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        accuracies = []
        for network in ("run/last.safetensors", "run/best.safetensors"):
            score = [ESPER, "eval", network, "--cache", "kept", "--json"]
            out = subprocess.run(score, cwd=folder, check=True, capture_output=True)
            accuracies.append(json.loads(out.stdout)["accuracy"])
        return accuracies


def fit(model, parts):
    x_train, y_train, x_test, y_test = parts
    return [100 * model.fit(x_train, y_train).score(x_test, y_test)]


def main():
    n_seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    tables = {"digits (1,797 x 64, 10 classes)": load_digits(return_X_y=True),
              "breast cancer (569 x 30, 2 classes)": load_breast_cancer(return_X_y=True),
              "products (12,000 x 16, 10 classes)": products()}
    print("| table | grown | the same run, least validation loss | boosting | MLP | seconds |\n|---|---|---|---|---|---|")
    for name, (x, y) in tables.items():
        scores, seconds = np.zeros((n_seeds, 4)), np.zeros((n_seeds, 3))
        for s in range(n_seeds):
            parts = split(np.asarray(x, np.float32), np.asarray(y), s + 1)
            runs = (lambda: grow(parts, s + 1),
                    lambda: fit(HistGradientBoostingClassifier(random_state=s), parts),
                    lambda: fit(make_pipeline(StandardScaler(), MLPClassifier(random_state=s)), parts))
            for k, run in enumerate(runs):
                begun = time.monotonic()
                accuracies = run()
                scores[s, k + (k > 0):][:len(accuracies)] = accuracies
                seconds[s, k] = time.monotonic() - begun
        cells = [f"{m:.2f} % ± {d:.2f}" for m, d in zip(scores.mean(0), scores.std(0))]
        print(f"| {name} | " + " | ".join(cells) + " | " + ", ".join(f"{t:.1f}" for t in seconds.mean(0)) + " |", flush=True)


main()
