# ctest: timeout=240
"""esper.Agreement: the record and its judging, hashes, and jobs of real processes over gloo."""
import datetime
import json
import multiprocessing
import os
import random
import shutil
import tempfile
import time
import unittest

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist

import esper
from esper import _agreement as record_of

LIMIT = 100  # seconds for a job, on a busy machine


def reduced(records):
    """What MAX over all ranks gives."""
    return bytes(max(column) for column in zip(*records))


class TestRecord(unittest.TestCase):
    def test_is_one_cache_line(self):
        self.assertEqual(len(record_of.pack(255, 2**64 - 1, 0, 7, 9)), 64)

    def test_agreeing(self):
        one = record_of.pack(0, 0x1234567890ABCDEF, 5, 100, 9)
        two = record_of.pack(0b101, 0x1234567890ABCDEF, 5, 100, 9)
        self.assertEqual(record_of.differing(reduced([one, two, one])), [])
        self.assertEqual(record_of.health_of(reduced([one, two, one])), 0b101)
        self.assertEqual(record_of.words([one, two, one], range(3)), "")

    def test_any_single_bit_is_seen(self):
        rng = random.Random(1)
        for n, (name, _, n_bytes) in enumerate(record_of.FIELDS):
            for bit in range(8 * n_bytes):
                values = [rng.getrandbits(64), rng.getrandbits(64), rng.getrandbits(64), rng.getrandbits(32)]
                good = record_of.pack(0, *values)
                values[n] ^= 1 << bit
                bad = record_of.pack(0, *values)
                self.assertEqual(record_of.differing(reduced([good, bad, good])), [name], (name, bit))
                self.assertEqual(record_of.judge([good, bad, good])[:2], ([1], [name]))

    def test_many_random_ranks(self):
        rng = random.Random(2)
        for _ in range(300):
            values = [[rng.choice((3, 3, 3, 4)) for _ in range(3)] for _ in range(rng.randrange(2, 9))]
            records = [record_of.pack(0, *value, 1) for value in values]
            expected = [name for i, name in enumerate(("state", "decisions", "step"))
                        if len({value[i] for value in values}) > 1]
            self.assertEqual(record_of.differing(reduced(records)), expected)
            self.assertEqual(record_of.judge(records)[1], expected)

    def test_words(self):
        good, bad = record_of.pack(0, 1, 2, 3, 4), record_of.pack(0, 7, 2, 3, 4)
        self.assertEqual(record_of.words([good, good, bad, good], range(4)),
                         "rank 2 of 4 differs from the others in: state (state: rank 2 has 0000000000000007, "
                         "the majority 0000000000000001)")
        self.assertEqual(record_of.words([good, bad], [4, 5]),
                         "ranks 4 and 5 of 2 differ, with no majority to say who is right, in: state (state: rank 4 "
                         "has 0000000000000001, rank 5 has 0000000000000007)")
        late = record_of.pack(0, 1, 2, 1003, 4)
        self.assertEqual(record_of.words([late, good, good], range(3)),
                         "rank 0 of 3 differs from the others in: step (step: rank 0 has 1,003, the majority 3)")


class TestHash(unittest.TestCase):
    def setUp(self):
        self.agreement = esper.Agreement()
        self.addCleanup(self.agreement.close)

    def same(self, one, two):
        self.assertEqual(self.agreement.hash(one), self.agreement.hash(two))

    def different(self, one, two):
        self.assertNotEqual(self.agreement.hash(one), self.agreement.hash(two))

    def test_plain_things(self):
        self.same({"a": 1, "b": [2.5, None]}, {"b": (2.5, None), "a": 1})
        for one, two in (([1, 2], [2, 1]), ([[1], 2], [1, [2]]), (1, 1.0), (1, True), ("1", 1), ("ab", b"ab"),
                         (["a", "b"], ["ab"]), ({"a": 1}, {"a": 2}), ({"a": 1}, {"b": 1}), (0.0, -0.0), (None, False)):
            self.different(one, two)

    def test_every_dtype_and_every_bit(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32,
                      torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64):
            tensor = (torch.arange(1000) % 100).to(dtype)
            other = tensor.clone()
            self.same(tensor, other)
            other[417] = 1 if dtype != torch.bool else ~other[417]
            self.different(tensor, other)
        tensor = torch.linspace(-1, 1, 999)
        for bit in range(31):
            other = tensor.clone()
            other.view(torch.int32)[998] ^= 1 << bit
            self.different(tensor, other)

    def test_values_count_not_their_place(self):
        tensor = torch.randn(4, 3, 8, 8)
        self.same(tensor, tensor.contiguous(memory_format=torch.channels_last))
        self.same(tensor[1:3], tensor[1:3].clone())
        self.same(tensor.t() if tensor.dim() == 2 else tensor[0, 0].t(), tensor[0, 0].t().contiguous())
        self.different(tensor, tensor.reshape(4, 3, 64))
        self.different(tensor, tensor.double())
        self.same(torch.empty(0), torch.empty(0))
        self.different(torch.empty(0, 3), torch.empty(3, 0))
        self.same(torch.nn.Parameter(tensor), torch.nn.Parameter(tensor.clone()))

    def test_which_tensor_counts(self):
        one, two = torch.ones(5), torch.zeros(5)
        self.different({"a": one, "b": two}, {"a": two, "b": one})
        self.different([one, two], [two, one])

    def test_modules_and_optimisers(self):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(6, 4)).sum().backward()
        optimizer.step()
        before = self.agreement.hash([model, optimizer])
        shared = {name: value for name, value in model.state_dict().items()
                  if "running" not in name and "num_batches" not in name}
        self.assertEqual(before, self.agreement.hash([shared, optimizer.state_dict()]))
        model[1].running_mean[2] += 1e-7
        self.assertEqual(before, self.agreement.hash([model, optimizer]), "running statistics are each rank's own")
        with torch.no_grad():
            model[1].weight[2] += 1e-6
        self.assertNotEqual(before, self.agreement.hash([model, optimizer]))

    def test_sparse(self):
        tensor = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (4,))
        self.same(tensor, torch.sparse_coo_tensor([[2, 0]], [2.0, 1.0], (4,)))
        self.different(tensor, torch.sparse_coo_tensor([[0, 3]], [1.0, 2.0], (4,)))

    def test_what_cannot_be_hashed(self):
        with self.assertRaisesRegex(TypeError, "cannot hash a object: give it numbers"):
            self.agreement.hash(object())
        with self.assertRaisesRegex(esper.Unsupported, "meta"):
            self.agreement.hash(torch.empty(3, device="meta"))


class TestAlone(unittest.TestCase):
    def test_agrees_with_itself(self):
        agreement = esper.Agreement()
        self.assertEqual((agreement.rank, agreement.size), (0, 1))
        self.assertEqual(agreement.agree(12, state=torch.ones(3), decisions=["grow"], health=5), 5)

    def test_switched_off(self):
        os.environ["ESPER_GUARD"] = "0"
        self.addCleanup(os.environ.pop, "ESPER_GUARD")
        agreement = esper.Agreement()
        self.assertEqual(agreement.agree(3, state=torch.ones(2), health=2), 2)
        self.assertEqual(agreement.hash(object()), 0)

    def test_bad_arguments(self):
        agreement = esper.Agreement()
        with self.assertRaisesRegex(ValueError, "health is 256: expected up to 8 flags"):
            agreement.agree(1, health=256)
        with self.assertRaisesRegex(ValueError, "step is -1"):
            agreement.agree(-1)
        with self.assertRaisesRegex(esper.GuardError, "init_process_group first"):
            esper.Agreement(object())


# ------------------------------------------------------------------------------------------------------------- jobs

def begin(rank, size, store, seconds=60):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=seconds))


def ask(agreement, *arguments, **named):
    try:
        return agreement.agree(*arguments, **named)
    except esper.Divergence as error:
        return {"text": str(error), "ranks": error.ranks, "fields": error.fields, "step": error.step}


def job_of_four(rank, size, store):
    begin(rank, size, store)
    said = {}
    agreement = esper.Agreement()
    torch.manual_seed(5)
    model = torch.nn.Linear(16, 16)
    said["same"] = ask(agreement, 1, state=model, decisions=["go"], health=1 << rank)
    if rank == 2:  # one bit that leaves the number finite
        model.weight.data.view(torch.int32)[3, 4] ^= 1
    said["bit"] = ask(agreement, 2, state=model)
    said["decision"] = ask(agreement, 3, decisions=["prune"] if rank == 1 else ["grow"])
    said["step"] = ask(agreement, 1000 if rank == 0 else 4)
    said["two of four"] = ask(agreement, 5, state=rank // 2)
    said["two fields"] = ask(agreement, 6, state=rank == 3, decisions=rank == 1)
    said["after all that"] = ask(agreement, 7, state=1, health=0)
    pair = dist.new_group([1, 3])
    if rank in (1, 3):
        part = esper.Agreement(pair)
        said["pair"] = ask(part, 8, state=rank)
        said["pair, same"] = ask(part, 9, state=4)
    else:
        try:
            esper.Agreement(pair)
        except (esper.GuardError, RuntimeError, ValueError) as error:
            said["stranger"] = type(error).__name__
    dist.barrier()
    return said


def job_of_two(rank, size, store):
    begin(rank, size, store)
    return {"differ": ask(esper.Agreement(), 3, state=[1.0, 2.0][rank])}


def job_with_a_rank_that_leaves(rank, size, store):
    begin(rank, size, store, seconds=10)
    agreement = esper.Agreement()
    agreement.agree(1)
    if rank == 1:
        os._exit(0)
    start = time.monotonic()
    try:
        agreement.agree(2)
    except esper.GuardError as error:
        return {"error": str(error), "seconds": time.monotonic() - start}
    return {"error": "none"}


def one_rank(job, rank, size, folder):
    said = job(rank, size, os.path.join(folder, "store"))
    with open(os.path.join(folder, f"{rank}.json"), "w") as file:
        json.dump(said, file)
    os._exit(0)  # groups that lost a rank do not end in peace


def run_job(job, size):
    """Starts the ranks, waits, and gives what each said (None for one that said nothing)."""
    folder = tempfile.mkdtemp(prefix="agreement-", dir=".")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed"])
    ranks = [context.Process(target=one_rank, args=(job, rank, size, os.path.abspath(folder))) for rank in range(size)]
    for process in ranks:
        process.start()
    end = time.monotonic() + LIMIT
    for process in ranks:
        process.join(max(0.1, end - time.monotonic()))
    late = [rank for rank, process in enumerate(ranks) if process.is_alive()]
    for process in ranks:
        process.kill()
        process.join()
    said = []
    for rank in range(size):
        path = os.path.join(folder, f"{rank}.json")
        said.append(None)
        if os.path.exists(path):
            with open(path) as file:
                said[rank] = json.load(file)
    shutil.rmtree(folder)
    assert not late, f"ranks {late} did not end within {LIMIT} s"
    return said


@unittest.skipUnless(dist.is_available() and dist.is_gloo_available() if hasattr(dist, "is_gloo_available")
                     else dist.is_available(), "no gloo")
class TestJobs(unittest.TestCase):
    def test_four_ranks(self):
        said = run_job(job_of_four, 4)
        for rank in range(4):
            self.assertIsNotNone(said[rank], f"rank {rank} failed")
            self.assertEqual(said[rank]["same"], 0b1111)
            self.assertEqual(said[rank]["after all that"], 0)
            for name, ranks, fields, step in (("bit", [2], ["state"], 2), ("decision", [1], ["decisions"], 3),
                                              ("two of four", [0, 1, 2, 3], ["state"], 5),
                                              ("two fields", [1, 3], ["state", "decisions"], 6)):
                got = said[rank][name]
                self.assertEqual((got["ranks"], got["fields"], got["step"]), (ranks, fields, step), (rank, name))
            self.assertEqual((said[rank]["step"]["ranks"], said[rank]["step"]["fields"]), ([0], ["step"]))
        self.assertTrue(said[0]["bit"]["text"].startswith("step 2: rank 2 of 4 differs from the others in: state ("),
                        said[0]["bit"]["text"])
        self.assertIn("rank 0 has 1,000, the majority 4", said[3]["step"]["text"])
        self.assertIn("with no majority", said[0]["two of four"]["text"])
        for rank in (1, 3):
            self.assertEqual(said[rank]["pair"]["ranks"], [1, 3])
            self.assertEqual(said[rank]["pair, same"], 0)
        for rank in (0, 2):
            self.assertIn("stranger", said[rank])

    def test_two_ranks_are_both_named(self):
        for said in run_job(job_of_two, 2):
            self.assertEqual(said["differ"]["ranks"], [0, 1])
            self.assertIn("ranks 0 and 1 of 2 differ, with no majority", said["differ"]["text"])

    def test_a_rank_that_left(self):
        said = run_job(job_with_a_rank_that_leaves, 2)[0]
        self.assertIn("step 2: rank 0 of 2 could not compare with the others", said["error"])
        self.assertLess(said["seconds"], 40)


if __name__ == "__main__":
    unittest.main()
