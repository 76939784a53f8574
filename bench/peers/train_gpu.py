#!/usr/bin/env python3
"""The trainer beside PyTorch on a GPU, in turn: the networks of `esper bench train`, at one precision.

  usage: train_gpu.py [--esper PROGRAM] [--rounds N] [--precision fp32|tf32|bf16] [--forms A,B] [NET...]
         NET: cnn_small, cnn_100k, cnn_wide, lm_tiny, lm_384; all of them unless named
         forms: eager, compile, graph (a CUDA graph of the whole step), compile_graph (torch.compile's own CUDA
         graphs, behind it the optimiser); the last three unless named

All networks and forms are made ready side by side, as compiling takes long, each in a process of its own, so that one
which ends, or loses the device, takes no other with it; then, one at a time, ours and each form are measured in turn. A
measurement is half a second of steps, waited for every sixteen as ours are; the peer's batch lies on the device, ours
is gathered in every step. One line for each form: medians, the median ratio of pairs and its spread.
Without --esper the peer alone. A program of its own measures each form of a network:
         train_gpu.py --peer NET PRECISION, which answers lines "ready FORM" and "FORM" as train_torch.py does
"""
import json
import os
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import train_torch  # noqa: E402

FORMS = ("eager", "compile", "graph", "compile_graph")
SECONDS, TOGETHER, WARM_STEPS = 0.5, 16, 5


class GpuPeer(train_torch.Peer):
    def __init__(self, torch, net, precision):
        super().__init__(torch, net)
        tf32 = precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = self.device == "cuda"
        self.bf16 = precision == "bf16"

    def make_for(self, form):
        """With the optimiser in one kernel, where there is a device for that."""
        model, optimiser = self.make()
        if self.device == "cuda":
            settings = {key: value for key, value in optimiser.defaults.items()
                        if key in ("lr", "momentum", "weight_decay", "betas", "eps")}
            if form == "graph" and "betas" in settings:
                settings["capturable"] = True
            optimiser = type(optimiser)(model.parameters(), fused=True, **settings)
        return model, optimiser

    def make_step(self, form):
        torch, loss_of = self.torch, self.torch.nn.functional.cross_entropy
        model, optimiser = self.make_for(form)
        modes = {"compile": {}, "compile_graph": {"mode": "reduce-overhead"}}
        forward = torch.compile(model, **modes[form]) if form in modes else model

        def forward_backward():
            with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.bf16):
                loss = loss_of(forward(self.x), self.y)
            loss.backward()

        def step():
            optimiser.zero_grad(set_to_none=True)
            forward_backward()
            optimiser.step()

        if form != "graph":
            for _ in range(WARM_STEPS):
                step()
            return step
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_STEPS):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        optimiser.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            forward_backward()
            optimiser.step()

        def replay(_keep=(model, optimiser)):  # the graph has their addresses, and does not hold their memory
            graph.replay()

        return replay

    def ready(self, form):
        if form not in self.steps:
            self.steps[form] = self.make_step(form)
        self.wait()

    def measure(self, form):
        self.ready(form)
        step, times, began = self.steps[form], [], time.perf_counter()
        while len(times) < 3 or time.perf_counter() - began < SECONDS:
            first = time.perf_counter()
            for _ in range(TOGETHER):
                step()
            self.wait()
            times.append((time.perf_counter() - first) / TOGETHER)
        return 1e3 * statistics.median(times[1:])

    def answer(self, line):
        form = line.split()[-1] if line.split() else ""
        if form not in FORMS:
            return {"form": form, "error": "no such form"}
        try:
            if line.startswith("ready "):
                self.ready(form)
                return {"form": form, "ready": True}
            return {"form": form, "value": self.measure(form), "unit": "ms"}
        except Exception as error:  # this torch, or this machine, has no such form: an answer too
            return {"form": form, "error": " ".join(str(error).split())[:160] or repr(error)}


def be_peer(net, precision):
    import torch

    peer = GpuPeer(torch, net, precision)
    device = torch.cuda.get_device_name() if peer.device == "cuda" else "cpu"
    train_torch.say(ready=True, torch=torch.__version__, cuda=torch.version.cuda, device=device)
    for line in sys.stdin:
        train_torch.say(**peer.answer(line.strip()))


class Program:
    """One that answers each line with a line of JSON; what is none is passed over."""

    def __init__(self, command, env=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.hello = self.listen()

    def listen(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        return self.ended()

    def ended(self):
        try:
            return {"error": f"it ended, exit status {self.process.wait(10)}"}
        except subprocess.TimeoutExpired:
            return {"error": "it says nothing more"}

    def ask(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except OSError:
            return self.ended()
        return self.listen()

    def close(self):
        try:
            self.process.stdin.close()
        except OSError:
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def side_by_side(work, items):
    threads = [threading.Thread(target=work, args=(item,)) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Contest:
    """A network: ours, the peer, and what was measured."""

    def __init__(self, net, options):
        self.net, self.forms, self.times, self.errors = net, options["forms"], {}, {}
        peer = [sys.executable, os.path.abspath(__file__), "--peer", net, options["precision"]]
        self.peers = {}
        self.ours = None
        if options["esper"]:
            lib = os.path.join(os.path.dirname(os.path.abspath(options["esper"])), "lib")
            env = dict(os.environ, LD_LIBRARY_PATH=lib) if os.path.isdir(lib) else None
            more = [] if options["precision"] == "fp32" else ["--precision", options["precision"]]
            self.ours = Program([options["esper"], "bench", "train." + net, "--backend", "cuda", "--paced"] + more, env)

        def make_ready(form):
            self.peers[form] = Program(peer)
            said = self.peers[form].ask("ready " + form)
            if "error" in said:
                self.errors[form] = said["error"]

        side_by_side(make_ready, self.forms)

    def note(self, name, said):
        if "value" in said:
            self.times.setdefault(name, []).append(said["value"])
        else:
            self.errors[name] = said.get("error", "no value")

    def measure(self):
        if self.ours is not None and "ours" not in self.errors:
            self.note("ours", self.ours.ask("go"))
        for form in self.forms:
            if form not in self.errors:
                self.note(form, self.peers[form].ask(form))

    def close(self):
        for peer in self.peers.values():
            peer.close()
        if self.ours is not None:
            self.ours.close()

    def samples(self):
        """What a step counts: samples, or tokens of text."""
        of = train_torch.CNNS.get(self.net)
        return of[2] if of else train_torch.LMS[self.net][3] * train_torch.LMS[self.net][4]

    def report(self, precision):
        ours = self.times.get("ours", [])
        if "ours" in self.errors:
            print(json.dumps({"net": self.net, "form": "ours", "error": self.errors["ours"]}))
        for form in self.forms:
            if form in self.errors or form not in self.times:
                print(json.dumps({"net": self.net, "form": form, "error": self.errors.get(form, "not measured")}))
                continue
            theirs = self.times[form]
            line = {"net": self.net, "precision": precision, "form": form,
                    "peer_per_s": round(1e3 * self.samples() / statistics.median(theirs))}
            if ours:
                ratios = sorted(b / a for a, b in zip(ours, theirs))
                line.update(ours_per_s=round(1e3 * self.samples() / statistics.median(ours)),
                            ratio=round(statistics.median(ratios), 3),
                            spread=[round(ratios[0], 3), round(ratios[-1], 3)])
            print(json.dumps(line), flush=True)


def read_options(arguments):
    options = {"esper": "", "rounds": 5, "precision": "fp32", "forms": list(FORMS[1:]), "nets": []}
    arguments = list(arguments)
    while arguments:
        word = arguments.pop(0)
        if word in ("--esper", "--precision"):
            options[word[2:]] = arguments.pop(0)
        elif word == "--rounds":
            options["rounds"] = int(arguments.pop(0))
        elif word == "--forms":
            options["forms"] = arguments.pop(0).split(",")
        elif word in train_torch.CNNS or word in train_torch.LMS:
            options["nets"].append(word)
        else:
            sys.exit(__doc__)
    options["nets"] = options["nets"] or list(train_torch.CNNS) + list(train_torch.LMS)
    return options


def main():
    if sys.argv[1:2] == ["--peer"] and len(sys.argv) == 4:
        be_peer(sys.argv[2], sys.argv[3])
        return
    options, contests = read_options(sys.argv[1:]), {}

    def open_one(net):
        contests[net] = Contest(net, options)

    side_by_side(open_one, options["nets"])
    ready = [contests[net] for net in options["nets"] if net in contests]
    for _ in range(options["rounds"]):
        for contest in ready:
            contest.measure()
    for contest in ready:
        contest.report(options["precision"])
    for hello in [peer.hello for contest in ready for peer in contest.peers.values()][:1]:
        print(json.dumps(hello), flush=True)
    for contest in ready:
        contest.close()


main()
