#!/usr/bin/env python3
"""A growth policy that learns by itself, for `esper learn --policy-cmd`: see docs/policy-protocol.md.

One process is asked about all environments in turn. An episode tries one blueprint: it germinates once, in the first
slot that takes it, and asks the gates to let the seed on. What the episode earned is the blueprint's score; the best
one so far is tried more and more often. That is little, and enough to show what there is to learn from.
"""
import json
import random
import sys

random.seed(1)  # the same run again gives the same decisions
scores = {}  # blueprint -> (mean return, episodes)
episodes = {}  # environment -> {"blueprint", "earned"}


def choose(blueprints):
    """The best so far, or now and then any: rarer, the more has been tried."""
    n_tried = sum(n for _, n in scores.values())
    known = [name for name in blueprints if name in scores]
    if not known or random.random() < 4.0 / (4.0 + n_tried):
        return random.choice(sorted(blueprints))
    return max(known, key=lambda name: scores[name][0])


def learn(episode):
    """What was earned in all counts for the blueprint that was tried."""
    name = episode["blueprint"]
    if name is not None:
        mean, n = scores.get(name, (0.0, 0))
        scores[name] = ((mean * n + episode["earned"]) / (n + 1), n + 1)
        print("learner: %s earned %.2f" % (name, episode["earned"]), file=sys.stderr)


def decide(view, episode):
    for slot in view["slots"]:
        if slot["seed"]:
            for op in ("fossilize", "advance"):
                if op in slot["legal"]:
                    return {"op": op, "slot": slot["id"], "reason": "the gate decides"}
    if episode["blueprint"] is None:
        for slot in view["slots"]:
            if "germinate" in slot["legal"] and slot["blueprints"]:
                episode["blueprint"] = choose(slot["blueprints"])
                return {"op": "germinate", "slot": slot["id"], "blueprint": episode["blueprint"], "tempo": 1}
    return {"op": "wait"}


def main():
    for line in sys.stdin:
        view = json.loads(line)
        told = view["episode"]
        if told["reward"] is None:  # its first view
            episodes[told["env"]] = {"blueprint": None, "earned": 0.0}
        episode = episodes[told["env"]]
        episode["earned"] += told["reward"] or 0.0
        if told["over"]:
            learn(episode)
            decision = {"op": "wait"}
        else:
            decision = decide(view, episode)
        decision["epoch"] = view["epoch"]
        print(json.dumps(decision), flush=True)


main()
