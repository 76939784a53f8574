# ctest: timeout=200 cost=10
"""Twenty-six more loops of other people's shape, guarded: see guard_loops.py for what is required of each."""
import copy
import inspect
import unittest
import warnings

from guard_loops import LOOPS, check, loop

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune
from torch.optim import swa_utils
from torch.utils.checkpoint import checkpoint_sequential

OPTIM = torch.optim


def chance(i):
    return torch.Generator().manual_seed(i)


def batch(i, n=12):
    x, y = torch.randn(n, 6, generator=chance(i)), torch.randint(3, (n,), generator=chance(1000 + i))
    return x, y


def net(out=3):
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, out))


def plain(run, model, loss, make=lambda p: OPTIM.AdamW(p, lr=1e-2), after=None, state=None):
    """The common shape: zero, loss, backward, step; then whatever this loop does besides."""
    optimizer = make(model.parameters())
    yield model, optimizer, state or {}
    while True:
        optimizer.zero_grad()
        loss(run.i).backward()
        run.go(optimizer)
        if after is not None:
            after()
        yield


# ---- several networks

@loop
def gan_discriminator(run):
    """The generator steps by an optimiser of its own, in the same iteration."""
    model, generator = net(1), nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
    optimizer, other = OPTIM.Adam(model.parameters(), lr=1e-3), OPTIM.Adam(generator.parameters(), lr=1e-3)
    yield model, optimizer, {}
    while True:
        fake = generator(torch.randn(12, 4, generator=chance(run.i)))
        optimizer.zero_grad()
        (F.softplus(-model(batch(run.i)[0])) + F.softplus(model(fake.detach()))).mean().backward()
        run.go(optimizer)
        other.zero_grad()
        F.softplus(-model(fake)).mean().backward()
        other.step()
        yield


@loop
def gan_generator(run):
    """Gradients of the discriminator come with it and are thrown away."""
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6))
    critic = net(1)
    optimizer, other = OPTIM.Adam(model.parameters(), lr=1e-3), OPTIM.RMSprop(critic.parameters(), lr=1e-3)
    yield model, optimizer, {}
    while True:
        other.zero_grad()
        with torch.no_grad():
            model.eval()
            fake = model(torch.randn(12, 4, generator=chance(run.i)))
            model.train()
        (critic(fake) - critic(batch(run.i)[0])).mean().backward()
        other.step()
        optimizer.zero_grad()
        (-critic(model(torch.randn(12, 4, generator=chance(50 + run.i))))).mean().backward()
        run.go(optimizer)
        yield


@loop
def distillation(run):
    teacher, model = net().eval(), net()
    with torch.no_grad():
        teacher[2].weight.mul_(3)

    def loss(i):
        x, y = batch(i)
        with torch.no_grad():
            soft = (teacher(x) / 2).softmax(-1)
        out = model(x)
        return F.cross_entropy(out, y) + 4 * F.kl_div((out / 2).log_softmax(-1), soft, reduction="batchmean")

    yield from plain(run, model, loss)


@loop
def memory_bank(run):
    """Contrastive: a momentum encoder and a queue of keys, both buffers of the model."""
    class Contrast(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = net(8)
            self.register_buffer("queue", F.normalize(torch.randn(32, 8), dim=1))
            self.register_buffer("place", torch.zeros((), dtype=torch.long))
            for name, parameter in self.encoder.named_parameters():
                self.register_buffer("key_" + name.replace(".", "_"), parameter.detach().clone())

        @torch.no_grad()
        def keys(self, x):
            for name, parameter in self.encoder.named_parameters():
                getattr(self, "key_" + name.replace(".", "_")).lerp_(parameter, 0.1)
            h = F.relu(F.linear(x, self.key_0_weight, self.key_0_bias))
            found = F.normalize(F.linear(h, self.key_2_weight, self.key_2_bias), dim=1)
            self.queue[(int(self.place) + torch.arange(len(x))) % 32] = found
            self.place.copy_((self.place + len(x)) % 32)
            return found

        def forward(self, x, other):
            query, key = F.normalize(self.encoder(x), dim=1), self.keys(other)
            logits = torch.cat([(query * key).sum(1, keepdim=True), query @ self.queue.clone().t()], 1)
            return F.cross_entropy(logits / 0.1, torch.zeros(len(x), dtype=torch.long))

    model = Contrast()

    def loss(i):
        x = batch(i, 8)[0]
        return model(x, x + 0.1 * torch.randn(x.shape, generator=chance(70 + i)))

    yield from plain(run, model, loss, lambda p: OPTIM.SGD(p, lr=0.05, momentum=0.9))


# ---- averages of weights

@loop
def swa(run):
    """Stochastic weight averaging, with its own schedule; the average is in state=."""
    model = net()
    optimizer = OPTIM.SGD(model.parameters(), lr=0.1)
    average = swa_utils.AveragedModel(model)
    schedule = swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=3)
    yield model, optimizer, {"average": average, "schedule": schedule}
    while True:
        optimizer.zero_grad()
        F.cross_entropy(model(batch(run.i)[0]), batch(run.i)[1]).backward()
        run.go(optimizer)
        average.update_parameters(model)
        schedule.step()
        yield


@loop(whole=False)  # the average follows behind the step
def average_in_the_model(run):
    """An exponential average in buffers, evaluated with now and then."""
    model = net()
    for name, parameter in list(model.named_parameters()):
        model.register_buffer("mean_" + name.replace(".", "_"), parameter.detach().clone())

    @torch.no_grad()
    def follow():
        for name, parameter in model.named_parameters():
            getattr(model, "mean_" + name.replace(".", "_")).lerp_(parameter, 0.2)

    optimizer = OPTIM.AdamW(model.parameters(), lr=1e-2)
    yield model, optimizer, {}
    while True:
        optimizer.zero_grad()
        F.cross_entropy(model(batch(run.i)[0]), batch(run.i)[1]).backward()
        run.go(optimizer)
        if run.stepped:
            follow()
        yield


# ---- steps of another make

@loop
def sharpness_by_hand(run):
    """Two backward passes and one step: weights are moved away between them, and back."""
    model = net()
    optimizer = OPTIM.SGD(model.parameters(), lr=0.05, momentum=0.9)
    yield model, optimizer, {}
    while True:
        x, y = batch(run.i)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            moved = [(p, p.grad * (0.05 / (norm + 1e-12))) for p in model.parameters()]
            before = [p.clone() for p in model.parameters()]
            for parameter, way in moved:
                parameter.add_(way)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), before):
                parameter.copy_(value)
        run.go(optimizer)
        yield


@loop(passes=False, whole=False)  # six steps in an iteration
def policy_epochs(run):
    """A policy is improved over the same rollout for three epochs of two minibatches."""
    model = nn.ModuleDict({"policy": net(4), "value": net(1)})
    optimizer = OPTIM.Adam(model.parameters(), lr=3e-3, eps=1e-5)
    yield model, optimizer, {}
    while True:
        x = torch.randn(32, 6, generator=chance(run.i))
        with torch.no_grad():
            old = model["policy"](x).log_softmax(-1)
            action = torch.multinomial(old.exp(), 1, generator=chance(90 + run.i))
            reward = x[:, :4].gather(1, action)[:, 0]
            advantage = reward - model["value"](x)[:, 0]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for epoch in range(3):
            for part in torch.randperm(32, generator=chance(run.i * 10 + epoch)).split(16):
                now = model["policy"](x[part]).log_softmax(-1)
                ratio = (now.gather(1, action[part]) - old[part].gather(1, action[part])).exp()[:, 0]
                gain = torch.min(ratio * advantage[part], ratio.clamp(0.8, 1.2) * advantage[part])
                entropy = -(now.exp() * now).sum(-1).mean()
                loss = -gain.mean() + 0.5 * F.mse_loss(model["value"](x[part])[:, 0], reward[part]) - 0.01 * entropy
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                run.go(optimizer) if epoch == 0 else optimizer.step()
        yield


@loop
def surgery(run):
    """Gradients of two tasks, each projected off the other where they conflict, are put together by hand."""
    model = nn.ModuleDict({"body": net(8), "one": nn.Linear(8, 3), "two": nn.Linear(8, 1)})
    optimizer = OPTIM.Adam(model.parameters(), lr=1e-2)
    yield model, optimizer, {}
    while True:
        x, y = batch(run.i)
        h = model["body"](x)
        losses = F.cross_entropy(model["one"](h), y), F.mse_loss(model["two"](h)[:, 0], x[:, 0])
        parameters = list(model.parameters())
        grads = [[torch.zeros_like(p) if g is None else g for p, g in zip(parameters, torch.autograd.grad(
            loss, parameters, retain_graph=True, allow_unused=True))] for loss in losses]
        flat = [torch.cat([g.flatten() for g in one]) for one in grads]
        dot = flat[0] @ flat[1]
        total = flat[0] + flat[1]
        if dot < 0:
            total = total - dot / flat[1].pow(2).sum() * flat[1] - dot / flat[0].pow(2).sum() * flat[0]
        at = 0
        for parameter in parameters:
            parameter.grad = total[at:at + parameter.numel()].view_as(parameter).clone()
            at += parameter.numel()
        run.go(optimizer)
        yield


@loop
def uncertainty_weights(run):
    """Two losses, weighted by parameters that are learnt with the rest."""
    model = nn.ModuleDict({"body": net(8), "one": nn.Linear(8, 3), "two": nn.Linear(8, 1)})
    model.register_parameter("log_variance", nn.Parameter(torch.zeros(2)))

    def loss(i):
        x, y = batch(i)
        h = model["body"](x)
        both = torch.stack([F.cross_entropy(model["one"](h), y), F.mse_loss(model["two"](h)[:, 0], x[:, 0])])
        return (both * torch.exp(-model.log_variance) + model.log_variance).sum()

    yield from plain(run, model, loss)


@loop
def inner_steps(run):
    """Meta-learning: two steps inside the graph, by functional calls, and one outside."""
    try:
        from torch.func import functional_call
    except ImportError:
        from torch.nn.utils.stateless import functional_call
    model = net()

    def loss(i):
        (x, y), (x2, y2) = batch(i), batch(500 + i)
        fast = dict(model.named_parameters())
        for _ in range(2):
            inner = F.cross_entropy(functional_call(model, fast, (x,)), y)
            grads = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
            fast = {name: value - 0.1 * grad for (name, value), grad in zip(fast.items(), grads)}
        return F.cross_entropy(functional_call(model, fast, (x2,)), y2)

    yield from plain(run, model, loss)


@loop
def master_weights(run):
    """The model computes in bfloat16; the optimiser has copies in float32, to and from which loops copy by hand."""
    model = net()
    low = copy.deepcopy(model).bfloat16()
    optimizer = OPTIM.AdamW(model.parameters(), lr=1e-2)
    yield model, optimizer, {}
    while True:
        with torch.no_grad():
            for mine, theirs in zip(low.parameters(), model.parameters()):
                mine.copy_(theirs)
        low.zero_grad()
        x, y = batch(run.i)
        F.cross_entropy(low(x.bfloat16()).float(), y).backward()
        for mine, theirs in zip(low.parameters(), model.parameters()):
            theirs.grad = mine.grad.float()
        run.go(optimizer)
        yield


@loop
def hooks_on_gradients(run):
    """Gradients are scaled and centred by hooks of the loop's own."""
    model = net()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.register_hook(lambda grad: grad - grad.mean(1, keepdim=True))
    yield from plain(run, model, lambda i: F.cross_entropy(model(batch(i)[0]), batch(i)[1]))


# ---- models of another make

@loop
def weight_norm(run):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 16)), nn.ReLU(), nn.Linear(16, 3))
    yield from plain(run, model, lambda i: F.cross_entropy(model(batch(i)[0]), batch(i)[1]),
                     lambda p: OPTIM.SGD(p, lr=0.1))


@loop
def orthogonal_parametrization(run):
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    nn.utils.parametrizations.orthogonal(model[0])
    yield from plain(run, model, lambda i: F.cross_entropy(model(batch(i)[0]), batch(i)[1]),
                     lambda p: OPTIM.SGD(p, lr=0.05))


@loop
def pruned(run):
    """Masks of torch's pruning are buffers, and weights are computed from them."""
    model = net()
    prune.random_unstructured(model[0], "weight", 0.3)
    yield from plain(run, model, lambda i: F.cross_entropy(model(batch(i)[0]), batch(i)[1]))


@loop
def checkpointed_in_segments(run):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)])
    said = inspect.signature(checkpoint_sequential).parameters  # later versions want it said
    how = {"use_reentrant": True} if "use_reentrant" in said else {}

    def loss(i):
        return checkpoint_sequential(model, 2, batch(i)[0].requires_grad_(), **how).pow(2).mean()

    yield from plain(run, model, loss)


@loop
def variational(run):
    """Noise is drawn in the forward pass, and the loss has two parts."""
    model = nn.ModuleDict({"encoder": net(8), "decoder": nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))})

    def loss(i):
        x = batch(i)[0]
        mean, log_variance = model["encoder"](x).chunk(2, 1)
        z = mean + torch.randn(mean.shape, generator=chance(30 + i)) * torch.exp(0.5 * log_variance)
        kl = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).mean()
        return F.mse_loss(model["decoder"](z), x) + 0.1 * kl

    yield from plain(run, model, loss)


@loop
def graph_of_nodes(run):
    """Messages along edges, scattered and averaged."""
    model = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)])

    def loss(i):
        x, y = batch(i)
        edges = torch.randint(12, (2, 40), generator=chance(60 + i))
        h = x
        for layer in model[:2]:
            total = torch.zeros_like(h).index_add(0, edges[1], layer(h)[edges[0]])
            count = torch.zeros(12).index_add(0, edges[1], torch.ones(40)).clamp(min=1)
            h = torch.relu(h + total / count[:, None])
        return F.cross_entropy(model[2](h), y)

    yield from plain(run, model, loss)


@loop
def packed_sequences(run):
    model = nn.ModuleDict({"rnn": nn.GRU(6, 8, batch_first=True, bidirectional=True), "head": nn.Linear(16, 3)})

    def loss(i):
        x = torch.randn(6, 5, 6, generator=chance(i))
        lengths = torch.randint(1, 6, (6,), generator=chance(40 + i))
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        last = model["rnn"](packed)[1].transpose(0, 1).flatten(1)
        return F.cross_entropy(model["head"](last), batch(i, 6)[1])

    yield from plain(run, model, loss)


@loop
def fake_quantized(run):
    """Weights are rounded in the forward pass, and the gradient passes straight through."""
    class Rounded(nn.Linear):
        def forward(self, x):
            rounded = (self.weight * 16).round() / 16
            return F.linear(x, self.weight + (rounded - self.weight).detach(), self.bias)

    model = nn.Sequential(Rounded(6, 16), nn.ReLU(), Rounded(16, 3))
    yield from plain(run, model, lambda i: F.cross_entropy(model(batch(i)[0]), batch(i)[1]))


# ---- loops that change as they go

@loop
def frozen_and_thawed(run):
    """Layers learn in turn; the others' gradients are None."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = OPTIM.SGD(model.parameters(), lr=0.1, momentum=0.9)
    yield model, optimizer, {}
    while True:
        for i, layer in enumerate((model[0], model[2], model[4])):
            layer.requires_grad_((run.i // 2) % 3 == i or i == 2)
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(batch(run.i)[0]), batch(run.i)[1]).backward()
        run.go(optimizer)
        yield


@loop
def growing_images(run):
    """Progressive resizing: every few steps the images are larger."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                          nn.Flatten(), nn.Linear(4, 3))

    def loss(i):
        size = 4 + 4 * (i // 3)
        return F.cross_entropy(model(torch.randn(6, 1, size, size, generator=chance(i))), batch(i, 6)[1])

    yield from plain(run, model, loss)


@loop
def curriculum_loader(run):
    """A DataLoader over more and harder samples in every epoch, and batches of uneven sizes at its end."""
    x = torch.randn(64, 6, generator=chance(1))
    y = (x[:, 0] > 0).long()
    order = x.abs().sum(1).argsort()
    model = net(2)
    optimizer = OPTIM.AdamW(model.parameters(), lr=1e-2)
    yield model, optimizer, {}
    for epoch in range(1, 10):
        chosen = torch.utils.data.Subset(list(zip(x, y)), order[:16 + 12 * epoch].tolist())
        for a, b in torch.utils.data.DataLoader(chosen, 12, shuffle=True, generator=chance(epoch)):
            optimizer.zero_grad()
            F.cross_entropy(model(a), b).backward()
            run.go(optimizer)
            yield


@loop(passes=False, whole=False)  # the loop itself goes back
def rate_finder(run):
    """Rates grow by the step; then the first weights are loaded again, and training begins."""
    model = net()
    optimizer = OPTIM.SGD(model.parameters(), lr=1e-4)
    first = copy.deepcopy(model.state_dict())
    yield model, optimizer, {}
    while True:
        if run.i <= 4:
            optimizer.param_groups[0]["lr"] *= 3
        elif run.i == 5:
            model.load_state_dict(first)
            optimizer.param_groups[0]["lr"] = 1e-2
            if run.guard is not None:
                run.guard.refresh()
        optimizer.zero_grad()
        F.cross_entropy(model(batch(run.i)[0]), batch(run.i)[1]).backward()
        run.go(optimizer)
        yield


@loop(passes=False, whole=False)  # the loop itself goes back
def best_weights(run):
    """Early stopping's other half: the best weights are kept, and loaded again when it gets worse."""
    model = net()
    optimizer = OPTIM.SGD(model.parameters(), lr=0.5)
    yield model, optimizer, {}
    best, kept = float("inf"), None
    while True:
        optimizer.zero_grad()
        F.cross_entropy(model(batch(run.i)[0]), batch(run.i)[1]).backward()
        run.go(optimizer)
        with torch.no_grad():
            score = float(F.cross_entropy(model(batch(0, 40)[0]), batch(0, 40)[1]))
        if score < best:
            best, kept = score, copy.deepcopy(model.state_dict())
        elif run.i % 4 == 0 and kept is not None:
            model.load_state_dict(kept)
            if run.guard is not None:
                run.guard.refresh()
        yield


class TestLoops(unittest.TestCase):
    def test_there_are_twenty_and_more(self):
        self.assertGreaterEqual(len(LOOPS), 20)


def _case(name):
    def test(self):
        check(self, name)
    return test


for _name in LOOPS:
    setattr(TestLoops, "test_" + _name, _case(_name))


if __name__ == "__main__":
    unittest.main()
