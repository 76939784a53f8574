#!/usr/bin/env python3
"""The gate's peers: how ranks of PyTorch tell each other a decision, over gloo on this machine.

Started by bench/vs_torch. Starts WORLD processes, says so in a JSON line, then answers each line of standard input, the
name of a form, with one measurement as a JSON line; so two programs can take turns.

  usage: gate_torch.py WORLD
         gate_torch.py --forms
"""
import json
import os
import sys
import time

FORMS = ("object", "tensor")  # the decision as a pickled dictionary; as eight floats
WARM, CALLS = 50, 500


def rank_main(rank, world, port, questions, answers):
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    decision = dict(gate=2, passed=True, score=0.87, checks_passed=["a", "b", "c"], checks_failed=[], message="ok")
    numbers = torch.zeros(8)
    calls = {
        "object": lambda: dist.broadcast_object_list([decision if rank == 0 else None], src=0),
        "tensor": lambda: dist.broadcast(numbers, src=0),
    }
    dist.barrier()
    if rank == 0:
        answers.put(torch.__version__)
    while True:
        form = questions[rank].get()
        if form is None:
            break
        for _ in range(WARM):
            calls[form]()
        dist.barrier()
        began = time.perf_counter()
        for _ in range(CALLS):
            calls[form]()
        dist.barrier()
        if rank == 0:
            answers.put((time.perf_counter() - began) / CALLS * 1e3)
    dist.destroy_process_group()


def free_port():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    if sys.argv[1:] == ["--forms"]:
        print(*FORMS, sep="\n")
        return
    import multiprocessing

    world = int(sys.argv[1])
    context = multiprocessing.get_context("spawn")
    questions, answers = [context.Queue() for _ in range(world)], context.Queue()
    port = free_port()
    ranks = [context.Process(target=rank_main, args=(r, world, port, questions, answers), daemon=True)
             for r in range(world)]
    for process in ranks:
        process.start()
    print(json.dumps(dict(ready=True, torch=answers.get(timeout=120), device="cpu", device_name="gloo")), flush=True)
    for line in sys.stdin:
        form = line.strip()
        if form not in FORMS:
            print(json.dumps(dict(error=f"no form is called {form}")), flush=True)
            continue
        for q in questions:
            q.put(form)
        print(json.dumps(dict(value=answers.get(timeout=120), unit="ms")), flush=True)
    for q in questions:
        q.put(None)
    for process in ranks:
        process.join(10)


if __name__ == "__main__":
    main()
