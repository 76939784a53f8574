# ctest: timeout=120
"""guard.locate(closure): fifty faults as they come by themselves, in models of ten kinds, each found in its module."""
import random
import unittest

import guard_cases as cases
import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 8


# ------------------------------------------------------------------------------- faults, as people write them

class Distance(torch.autograd.Function):
    """A Function of somebody's own, whose backward pass divides by what may be zero."""

    @staticmethod
    def forward(ctx, x):
        length = x.pow(2).sum(-1, keepdim=True).sqrt()
        ctx.save_for_backward(x, length)
        return length

    @staticmethod
    def backward(ctx, grad):
        x, length = ctx.saved_tensors
        return grad * x / length


class Overflows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.exp(x.abs() * 1e4)

    @staticmethod
    def backward(ctx, grad):
        return grad


def mask_of(h):
    return torch.zeros_like(h)


FAULTS = {  # what is done to a hidden layer, (operation, pass)
    "log of 0": (lambda h: h + torch.log(F.relu(-h.abs())), "log", "forward"),
    "log behind where": (lambda h: torch.where(h > 9, torch.log(F.relu(h - 9)), h), "log", "backward"),
    "log of a negative number": (lambda h: torch.log(-h.abs() - 1), "log", "forward"),
    "log1p at -1": (lambda h: torch.log1p(h * 0 - 1), "log1p", "forward"),
    "sqrt at 0": (lambda h: h + torch.sqrt((h - h.detach()).pow(2)), "sqrt", "backward"),
    "sqrt of a negative number": (lambda h: torch.sqrt(-1 - h.abs()), "sqrt", "forward"),
    "rsqrt of no variance": (lambda h: h * torch.rsqrt((h * 0).var(-1, keepdim=True)), "rsqrt", "forward"),
    "0 / 0": (lambda h: (h * 0) / (h * 0), "div", "forward"),
    "division by a zero norm": (lambda h: (h * mask_of(h)) / (h * mask_of(h)).norm(dim=-1, keepdim=True), "div",
                                "forward"),
    "mean over an empty mask": (lambda h: h + (h * mask_of(h)).sum() / mask_of(h).sum(), "div", "forward"),
    "exp overflow": (lambda h: torch.exp(h.abs() * 1e4 + 100), "exp", "forward"),
    "exp of a log-variance": (lambda h: h + torch.randn_like(h) * torch.exp(0.5 * (h + 300)), "exp", "forward"),
    "sinh overflow": (lambda h: torch.sinh(h * 0 + 100), "sinh", "forward"),
    "overflow in fp16": (lambda h: (h * 0 + 7e4).half().float(), "to_copy", "forward"),
    "product overflow in fp16": (lambda h: ((h * 0 + 300).half() * (h * 0 + 300).half()).float(), "mul", "forward"),
    "overflow of a product": (lambda h: (h * 0 + 1e30) @ (h * 0 + 1e30).t() @ h, "mm", "forward"),
    "power overflow": (lambda h: (h.abs() + 10) ** 60, "pow", "forward"),
    "root of a negative number": (lambda h: (-1 - h.abs()) ** 0.5, "pow", "forward"),
    "root at 0": (lambda h: h + (h - h.detach()).abs() ** 0.5, "pow", "backward"),
    "softmax over all -inf": (lambda h: torch.softmax(h.masked_fill(h < 1e9, float("-inf")), -1), "softmax", "forward"),
    "log_softmax over all -inf": (lambda h: torch.log_softmax(h + float("-inf"), -1), "log_softmax", "forward"),
    "a difference of -inf": (lambda h: h.masked_fill(h < 1e9, float("-inf"))
                             - h.masked_fill(h < 1e9, float("-inf")).amax(-1, keepdim=True), "sub", "forward"),
    "acos beyond 1": (lambda h: torch.acos(h * 0 + 1.0000002), "acos", "forward"),
    "acos at 1": (lambda h: torch.acos(h * 0 + 1), "acos", "backward"),
    "atanh at 1": (lambda h: torch.atanh(torch.sign(h)), "atanh", "forward"),
    "asin of a saturated tanh": (lambda h: torch.asin(torch.tanh(h * 0 + 100)), "asin", "backward"),
    "reciprocal of 0": (lambda h: torch.reciprocal(h * 0), "reciprocal", "forward"),
    "deviation of one": (lambda h: h / h[:1].std(0), "std", "forward"),
    "logit at 1": (lambda h: torch.logit(torch.sigmoid(h * 0 + 100)), "logit", "forward"),
    "erfinv at 1": (lambda h: torch.erfinv(torch.tanh(h * 0 + 100)), "erfinv", "forward"),
    "entropy of a certainty": (lambda h: h - (F.one_hot(h.argmax(-1), WIDTH) * torch.log(F.one_hot(
        h.argmax(-1), WIDTH).to(h.dtype))).sum(-1, keepdim=True), "log", "forward"),
    "a Function's backward": (lambda h: Distance.apply(h * 0) + h, "Distance", "backward"),
    "a Function's forward": (lambda h: Overflows.apply(h + 1), "exp", "forward"),
    "in place": (lambda h: h.clone().div_(0), "div", "forward"),
    "in place through a view": (lambda h: _written(h), "log", "forward"),
}


def _written(h):
    h = h.clone()
    h[0].mul_(0).log_()
    return h


class Part(nn.Module):
    """A layer in which the fault is made, when it is this one's turn."""

    def __init__(self, layer=None):
        super().__init__()
        self.layer = layer if layer is not None else nn.Linear(WIDTH, WIDTH)
        self.fault = None

    def forward(self, x):
        h = self.layer(x)
        return h if self.fault is None else self.fault(h)


# ------------------------------------------------------------------------------------------- models of ten kinds

class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[nn.Sequential(Part(), nn.Tanh()) for _ in range(4)])

    def forward(self, x):
        return self.blocks(x)


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2))
        self.neck = Part(nn.Linear(8, WIDTH))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.head(self.neck(self.features(x.view(-1, 1, 4, 2).repeat(1, 1, 1, 2)).flatten(1)))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
        self.body = Part(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.head(self.body(self.stem(x)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.read = Part()
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.head(self.read(self.rnn(x[:, None].repeat(1, 5, 1))[0][:, -1]))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True) for _ in range(2))
        self.between = Part()
        self.head = nn.Linear(WIDTH, 3)
        mask = torch.full((4, 4), float("-inf")).triu(1)
        self.register_buffer("mask", mask)
        self.padding = None

    def forward(self, x):
        h = x[:, None].repeat(1, 4, 1)
        h = self.layers[0](h, src_mask=self.mask)
        h = self.between(h.flatten(0, 1)).view_as(h)
        return self.head(self.layers[1](h, src_mask=self.mask, src_key_padding_mask=self.padding).mean(1))


class Graph(nn.Module):
    """Messages along edges, averaged; node 5 has none unless every node has one to itself."""

    def __init__(self):
        super().__init__()
        self.update = nn.ModuleList([Part(), Part()])
        self.head = nn.Linear(WIDTH, 3)
        self.lonely = False

    def aggregate(self, h):
        n = h.shape[0]
        source, target = torch.arange(n), (torch.arange(n) + 1) % n
        if self.lonely:
            target = target.clamp(max=4)
        total = torch.zeros_like(h).index_add(0, target, h[source])
        return total / torch.zeros(n).index_add(0, target, torch.ones(n))[:, None]

    def forward(self, x):
        h = x
        for update in self.update:
            h = update(self.aggregate(h)).tanh()
        return self.head(h)


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), Part())
        self.decoder = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))

    def forward(self, x):
        return self.decoder(self.encoder(x))


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, WIDTH, sparse=True)
        self.pool = Part()
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.head(self.pool(self.words((x.abs() * 100).long() % 20).mean(1)))


class Own(nn.Module):
    """With a Function of its own in every layer."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return grad * 2 * ctx.saved_tensors[0]

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([Part() for _ in range(3)])

    def forward(self, x):
        for part in self.parts:
            x = self.Square.apply(part(x)).tanh()
        return x


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, WIDTH)
        self.body = Part()
        self.out = nn.Linear(WIDTH, 20, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.body(self.embed((x.abs() * 100).long() % 20).mean(1)))


PARTS = {MLP: "blocks.2.0", CNN: "neck", Normed: "body", Recurrent: "read", Transformer: "between", Graph: "update.1",
         AutoEncoder: "encoder.2", Sparse: "pool", Own: "parts.1", Tied: "body"}
SQUASHES = (MLP, Graph, Own)  # a tanh hides an Inf of the forward pass from the loss, and 0 / 0 comes back from it


def each_kind_with_some():
    """Every kind of model with five of the faults, and every fault in one model or more: fifty."""
    names = list(FAULTS)
    for i, kind in enumerate(PARTS):
        for j in range(5):
            yield kind, names[(5 * i + j) % len(names)]


def built(kind):
    torch.manual_seed(1)
    return kind()


def batch():
    return torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(2))


class TestLocate(cases.Case):
    def located(self, model, closure=None):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with self.guard(model, optimizer, "report") as guard:
            return guard.locate(closure if closure is not None else lambda: model(batch()).pow(2).mean().backward())

    def test_fifty_faults(self):
        n_tried, covered = 0, set()
        for kind, name in each_kind_with_some():
            fault, operation, when = FAULTS[name]
            with self.subTest(model=kind.__name__, fault=name):
                model = built(kind)
                self.assertFalse(self.located(model))
                model.get_submodule(PARTS[kind]).fault = fault
                found = self.located(model)
                self.assertEqual((found.module, found.operation), (PARTS[kind], operation), found)
                if kind not in SQUASHES:
                    self.assertEqual(found.when, when, found)
                self.assertEqual(found.module_kind, "Part")
                self.assertIn("test_locate.py", found.where)
                n_tried += 1
                covered.add(name)
        self.assertEqual((n_tried, len(covered)), (50, len(FAULTS)))


class TestSpecial(TestLocate):
    """Faults that belong to one kind of model."""

    test_fifty_faults = None

    def told(self, found, module, operation, when="forward"):
        self.assertEqual((found.module, found.operation, found.when), (module, operation, when), found)

    def test_bad_rows_of_an_embedding(self):
        for kind, name in ((Sparse, "words"), (Tied, "embed")):
            model = built(kind)
            row = int((batch().abs() * 100).long()[0, 0] % 20)
            model.get_submodule(name).weight.data[row] = float("nan")
            found = self.located(model)
            self.told(found, name, "parameter weight")
            self.assertEqual((found.kind, found.n_bad, found.count), ("NaN", WIDTH, 20 * WIDTH))
            self.assertIn("whose parameter weight holds it: 8 of 160", str(found))

    def test_a_lonely_node(self):
        model = built(Graph)
        model.lonely = True
        self.told(self.located(model), "", "div")

    def test_a_padded_sentence_of_nothing(self):
        model = built(Transformer)
        model.padding = torch.ones(6, 4, dtype=torch.bool)
        if bool(model(batch()).isfinite().all()):
            self.skipTest("this torch gives rows of a softmax that are masked altogether zeros")
        found = self.located(model)
        self.assertIn(found.module, ("layers.1.self_attn", "layers.1"), found)
        self.assertIn(found.operation, ("softmax", "scaled_dot_product_attention", "safe_softmax", "baddbmm",
                                        "scaled_dot_product_flash_attention_for_cpu"), found)

    def test_a_mask_is_no_fault(self):
        self.assertFalse(self.located(built(Transformer)))

    def test_a_mask_and_then_a_fault(self):
        model = built(Transformer)
        model.between.fault = FAULTS["exp overflow"][0]
        self.told(self.located(model), "between", "exp")

    def test_weights_of_an_lstm(self):
        model = built(Recurrent)
        model.rnn.weight_ih_l0.data[3, 2] = float("nan")
        self.told(self.located(model), "rnn", "parameter weight_ih_l0")

    def test_the_batch(self):
        model, x = built(MLP), batch()
        x[2, 3] = float("nan")
        found = self.located(model, lambda: model(x).sum())
        self.told(found, "blocks.0.0.layer", "input")
        self.assertIn("which was given it: 1 of 48", str(found))

    def test_running_statistics(self):
        model = built(Normed)
        model.eval()
        model.stem[1].running_mean[0] = float("nan")
        self.told(self.located(model), "stem.1", "buffer running_mean")

    def test_the_loss_itself(self):
        model = built(MLP)
        found = self.located(model, lambda: torch.log(model(batch()).mul(0)).mean().backward())
        self.told(found, None, "log")
        self.assertIn("outside of the model", str(found))
        found = self.located(model, lambda: nn.PoissonNLLLoss(log_input=True)(model(batch()) + 500,
                                                                             torch.ones(6, WIDTH)).backward())
        self.assertEqual((found.module, found.module_kind, found.operation), (None, "PoissonNLLLoss", "exp"))

    def test_behind_a_checkpoint(self):
        from torch.utils.checkpoint import checkpoint
        for options in ({"use_reentrant": False}, {"use_reentrant": True}):
            model = built(MLP)
            model.blocks[2][0].fault = FAULTS["sqrt at 0"][0]
            x = batch().requires_grad_()
            found = self.located(model, lambda: checkpoint(model.blocks[2], checkpoint(
                model.blocks[1], x, **options), **options).sum().backward())
            self.told(found, "blocks.2.0", "sqrt", "backward")

    def test_several_losses(self):
        """As of a generator and a discriminator: the first that is bad."""
        one, two = built(MLP), built(MLP)
        two.blocks[1][0].fault = FAULTS["log of a negative number"][0]
        model = nn.ModuleDict({"one": one, "two": two})

        def closure():
            one(batch()).sum().backward()
            two(one(batch())).sum().backward()

        self.told(self.located(model, closure), "two.blocks.1.0", "log")

    def test_autograd_grad(self):
        model = built(MLP)
        model.blocks[2][0].fault = FAULTS["sqrt at 0"][0]
        found = self.located(model, lambda: torch.autograd.grad(model(batch()).sum(), list(model.parameters())))
        self.told(found, "blocks.2.0", "sqrt", "backward")

    def test_wrapped(self):
        model = built(MLP)
        model.blocks[2][0].fault = FAULTS["log of a negative number"][0]
        wrapped = nn.DataParallel(model)
        self.told(self.located(wrapped, lambda: wrapped(batch()).sum()), "blocks.2.0", "log")

    @cases.needs(hasattr(torch, "compile"), "torch.compile")
    def test_compiled(self):
        model = built(MLP)
        compiled = torch.compile(model, backend="eager")
        compiled(batch())
        model.blocks[2][0].fault = FAULTS["log of a negative number"][0]
        if hasattr(torch.compiler, "set_stance"):
            self.told(self.located(compiled, lambda: compiled(batch()).sum()), "blocks.2.0", "log")


class TestPutBack(cases.Case):
    def test_all_is_as_it_was(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(), nn.Linear(WIDTH, 3))
        optimizer = torch.optim.AdamW(model.parameters())
        guard = self.guard(model, optimizer, "report").attach()
        model(batch()).sum().backward()
        optimizer.step()
        grads = [(parameter.grad, parameter.grad.clone()) for parameter in model.parameters()]
        before, chance, dice = cases.state_of(model, optimizer), torch.get_rng_state(), random.getstate()
        steps, step = guard.steps, optimizer.step

        def closure():
            optimizer.zero_grad()
            random.random()
            loss = (model(torch.randn(6, WIDTH)) * float("inf")).sum()
            loss.backward()
            optimizer.step()
            return loss

        self.assertTrue(guard.locate(closure))
        self.assertSameState(before, cases.state_of(model, optimizer))
        self.assertTrue(torch.equal(chance, torch.get_rng_state()))
        self.assertEqual(dice, random.getstate())
        for parameter, (grad, value) in zip(model.parameters(), grads):
            self.assertIs(parameter.grad, grad)
            self.assertTrue(torch.equal(grad, value))
        self.assertEqual((guard.steps, optimizer.step), (steps, step))
        self.assertFalse(torch.is_anomaly_enabled())

    def test_a_closure_that_raises(self):
        model = nn.Linear(WIDTH, 3)
        guard = self.guard(model, torch.optim.SGD(model.parameters(), lr=0.1), "report")
        with self.assertRaisesRegex(KeyError, "mine"):
            guard.locate(lambda: {}["mine"])

        def asserts():
            out = torch.log(model(batch()) * 0)
            raise AssertionError("not finite") if not bool(out.isfinite().all()) else None

        self.assertEqual(guard.locate(asserts).operation, "log")
        self.assertFalse(torch.is_anomaly_enabled())
        self.assertEqual(torch.autograd.backward.__module__, "torch.autograd")

    def test_seeds_of_the_closure(self):
        """A fault that depends on chance is found with the seed of the bad step."""
        model = nn.Sequential(nn.Dropout(0.5), nn.Linear(WIDTH, 1))
        guard = self.guard(model, torch.optim.SGD(model.parameters(), lr=0.1), "report")

        def closure(seed):
            torch.manual_seed(seed)
            return torch.log(model[0](torch.ones(1))).sum() + model[1](batch()).sum()

        outcomes = {bool(guard.locate(lambda: closure(seed))) for seed in range(20)}
        self.assertEqual(outcomes, {True, False})
        for seed in range(20):
            self.assertEqual(bool(guard.locate(lambda: closure(seed))), bool(guard.locate(lambda: closure(seed))))


if __name__ == "__main__":
    unittest.main()
