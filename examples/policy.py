#!/usr/bin/env python3
"""A growth policy in a few lines: the protocol is told in docs/policy-protocol.md.

Reads one view a line, answers one decision a line, ends when its input ends. It germinates in the slot with the most
evidence when the host is on a plateau, leads the seed through its stages, keeps it when at least a point of accuracy is
proven to be its own, and prunes it when that is out of reach or takes too long.
"""
import json
import sys

ROTATION = ["conv_light", "conv_heavy", "depthwise", "lora", "mlp_small", "norm"]
PROVEN = 1.0  # points of accuracy
PATIENCE = {"training": 30, "holding": 10}  # epochs


def too_long(slot):
    return slot["seed"]["epochs_in_stage"] >= PATIENCE.get(slot["stage"], 1000)


def germinate(view, memory):
    """In the best empty slot, the first blueprint in turn that fits there."""
    slots = [slot for slot in view["slots"] if "germinate" in slot["legal"]]
    slots.sort(key=lambda slot: slot["evidence"] or 0.0, reverse=True)
    for slot in slots:
        for i in range(len(ROTATION)):
            name = ROTATION[(memory["turn"] + i) % len(ROTATION)]
            if name in slot["blueprints"]:
                memory["turn"] += i + 1
                return {"op": "germinate", "slot": slot["id"], "blueprint": name, "tempo": 5,
                        "reason": "plateau of %d epochs" % view["signals"]["plateau_epochs"]}
    return {"op": "wait", "reason": "nothing fits"}


def manage(slot):
    """What the one live seed needs."""
    seed = slot["seed"]
    if slot["stage"] == "holding":
        low, high = seed["contribution_low"], seed["contribution_high"]
        measured = low is not None and seed["contribution_epochs"] >= 3
        if measured and low >= PROVEN:
            return {"op": "fossilize", "slot": slot["id"], "reason": "at least %+.2f points" % low}
        if (measured and high < PROVEN or too_long(slot)) and "prune" in slot["legal"]:
            return {"op": "prune", "slot": slot["id"], "reason": "not proven"}
    elif too_long(slot) and "prune" in slot["legal"]:
        return {"op": "prune", "slot": slot["id"], "reason": "stuck in " + slot["stage"]}
    elif "advance" in slot["legal"] and seed["alpha_mode"] == "hold":
        return {"op": "advance", "slot": slot["id"], "reason": "the gate decides"}
    return {"op": "wait", "reason": slot["stage"]}


def decide(view, memory):
    live = [slot for slot in view["slots"] if slot["seed"] and slot["stage"] != "fossilized"]
    if live:
        return manage(live[0])
    if view["signals"]["host_stabilized"] and view["signals"]["plateau_epochs"] >= 3:
        return germinate(view, memory)
    return {"op": "wait", "reason": "the host still learns"}


def main():
    for line in sys.stdin:
        view = json.loads(line)
        if view["protocol"] != 1:
            sys.exit("this policy speaks protocol 1, not %s" % view["protocol"])
        memory = json.loads(view["memory"]) if view["memory"] else {"turn": 0}
        decision = decide(view, memory)
        decision["epoch"] = view["epoch"]
        decision["memory"] = json.dumps(memory)
        print(json.dumps(decision), flush=True)  # without flush it would wait in a buffer until the deadline


main()
