"""A program for `esper learn --policy-cmd`: legal decisions by chance, from the menus that actions have.
Writes down what was decided and what it was worth, a line of JSON for each view.

    usage: grow_env_decider.py LOG SEED
"""
import json
import random
import sys

MENUS = {"style": ["linear_add", "linear_multiply", "sigmoid_add", "gated_gate"], "tempo": [3, 5, 8],
         "target": [0.5, 0.7, 1.0], "speed": [0, 3, 5, 8],
         "curve": ["linear", "cosine", "sigmoid_gentle", "sigmoid", "sigmoid_sharp"]}
ASKED = {"germinate": ("style", "tempo", "target"), "set_alpha_target": ("target", "speed", "curve"),
         "prune": ("speed", "curve")}
# a seed with weight keeps its operator
STYLES = {"add": "sigmoid_add", "multiply": "linear_multiply", "gate": "gated_gate"}
BUSY = ("germinated", "training", "pruned", "embargoed", "resetting")  # nothing germinates or is tried then, masks say


def decide(view, rng):
    busy = any(slot["stage"] in BUSY for slot in view["slots"])
    can = [(slot, op) for slot in view["slots"] for op in slot["legal"]
           if op != "wait" and not (op in ("germinate", "try") and (busy or not slot["blueprints"]))]
    if not can or rng.random() < 0.2:
        return {"op": "wait"}
    slot, op = rng.choice(can)
    decision = {"op": op, "slot": slot["id"]}
    if op == "germinate":
        decision["blueprint"] = rng.choice(sorted(slot["blueprints"]))
    if op == "set_alpha_target":
        decision["style"] = STYLES[slot["seed"]["operator"]]
    decision.update((key, rng.choice(MENUS[key])) for key in ASKED.get(op, ()))
    return decision


def main():
    rng = random.Random(int(sys.argv[2]))
    with open(sys.argv[1], "w") as log:
        for line in sys.stdin:
            view = json.loads(line)
            episode = view["episode"]
            decision = {"op": "wait"} if episode["over"] else decide(view, rng)
            print(json.dumps({"episode": episode, "decision": decision, "accuracy": view["valid"]["accuracy"],
                              "params": view["params_total"]}), file=log, flush=True)
            print(json.dumps(dict(decision, epoch=view["epoch"])), flush=True)


if __name__ == "__main__":
    main()
