"""The bits of a data set: which words of the cipher they come from, and that nothing else changes them."""

import hashlib
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchchol.batches.batch import Batch
from batchchol.datasets import generation, philox, recipes
from batchchol.errors import OutOfMemory
from kernelgen import Layout

RECIPES = sorted(generation.catalogue())
MASK = 2**64 - 1

# Of matrices 5 ... 11 of order 7, seed 2017. A change here is a change of every stored data set.
GOLDEN = {
    ("diagonally_dominant", "float32"): "7605c6da5b20c1ffcf1d16278440c326148732677b12f32840e5a413745bbf6a",
    ("diagonally_dominant", "float64"): "af88b1420aefd7442828dea4b3258b76bf085ad3f9590c5320e2b561972a34e8",
    ("wishart", "float32"): "e82f6a55efc9971c7929ffea25abe93caed9fa1958362bb1babc0db1672734e5",
    ("wishart", "float64"): "b702fe21acc1b76cd1dba07c03543928fa0c7c619b89980b7bbeee7976976ac9",
    ("condition", "float32"): "06182e4fec8ec183d147e223af6a03578791438f4263051a68b98063e8304586",
    ("condition", "float64"): "c8b0632bc9e185408af8889c8be61f5e79ab1af48d9652518c9ce4dd7fa9b623",
    ("graded", "float32"): "d97ec43d6aa88a6c512fcb1e1eaaa7278b14f156b296a9b6e52c410b49fbe3dd",
    ("graded", "float64"): "56ba8f82beab8e17161793290494c7e6bbe321d1d5181b86613c213972252547",
    ("banded", "float32"): "3e2f2d03efb14b9a90fa18502c754cbd9567c3f52fe3ac1800eb1c325a68fa60",
    ("banded", "float64"): "25a691e39231b4b027f983ffc15d3c11afe7dae94e46351f85595804d35ee0ea",
    ("integer_recipe", "float32"): "3b098814f5cc030f8f2b6692e94a182eb4d7f51728ed88e413872a6af8abd055",
    ("integer_recipe", "float64"): "7112889fbdf73fbec018dd45064ab310182db19059bee9c4f7b9d449c043b05c",
    ("failing", "float32"): "592074bdc5cb5c310b6b29dc23839110bf399b1c8890dd72c8e328c9f0025ae9",
    ("failing", "float64"): "65134c9401a6df008a645c84b78b323648ae8545a4ab21924add20c81ac0f744",
    ("digits", "float32"): "85a57cee5e5739b3d46f21f22af715df5f051b13da39be5d8233b8f3b57e2428",
    ("digits", "float64"): "35c4b6d14878c7baa8394d060b873bfe2bc1d29a4dc7cb46fd3542fbaf9734e0",
}


def reference_words(seed: int, stream: int, n: int, block: int) -> list[int]:
    """Philox4x64-10 of one block, written from the paper."""
    key, counter = [seed, stream << 32 | n], [(block + 1) >> 64 * word & MASK for word in range(4)]
    for _round in range(10):
        first, second = 0xD2E7470EE14C6C93 * counter[0], 0xCA5A826395121157 * counter[2]
        counter = [second >> 64 ^ counter[1] ^ key[0], second & MASK, first >> 64 ^ counter[3] ^ key[1], first & MASK]
        key = [(key[0] + 0x9E3779B97F4A7C15) & MASK, (key[1] + 0xBB67AE8584CAA73B) & MASK]
    return counter


def test_cipher_matches_the_known_answer_of_its_authors():
    # kat_vectors of Random123: philox4x64, 10 rounds, counter and key zero; NumPy's counter is one ahead.
    expected = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    assert reference_words(0, 0, 0, -1) == expected


@pytest.mark.parametrize(("seed", "start"), [(0, 0), (7, 3), (MASK, 2**40), (1, 2**62)])
def test_words_are_the_documented_blocks(seed, start):
    drawn = philox.Words(seed, 5, 13, 3, start).take(2)
    blocks = [(start + matrix) * 3 + block for matrix in range(2) for block in range(3)]
    assert drawn.ravel().tolist() == [word for block in blocks for word in reference_words(seed, 5, 13, block)]


def test_parts_of_words_are_cut_least_significant_first():
    drawn = np.array([[0x0807060504030201, 0x100F0E0D0C0B0A09]], dtype="<u8")
    assert philox.words32(drawn, 3).tolist() == [[0x04030201, 0x08070605, 0x0C0B0A09]]
    assert philox.octets(drawn, 9).tolist() == [list(range(1, 10))]


def test_diagonally_dominant_follows_its_formula_from_the_words_up():
    n, matrix = 5, 9
    plan = recipes.plan("diagonally_dominant", n, "float64", {})
    words = [w for b in range(plan.blocks) for w in reference_words(3, plan.stream, n, matrix * plan.blocks + b)]
    halves = [half for word in words for half in (word & 0xFFFFFFFF, word >> 32)]
    r = np.array([half >> 2 for half in halves[: n * n]]).reshape(n, n) / 2**30
    made = generation.generate("diagonally_dominant", n=n, start=matrix, stop=matrix + 1, seed=3, dtype="float64")
    assert np.array_equal(made[0], (r + r.T) / 2 + n * np.eye(n))


@pytest.mark.parametrize("name", RECIPES)
def test_golden_bits(name):
    for dtype in ("float32", "float64"):
        made = generation.generate(name, n=7, start=5, stop=12, seed=2017, dtype=dtype)
        digest = hashlib.sha256(made.astype(made.dtype.newbyteorder("<")).tobytes()).hexdigest()
        assert digest == GOLDEN[name, dtype]


@pytest.mark.parametrize("name", RECIPES)
@settings(max_examples=30)
@given(cuts=st.lists(st.integers(0, 60), max_size=4), threads=st.integers(1, 3))
def test_slices_are_cut_from_one_batch(name, cuts, threads):
    whole = generation.generate(name, n=6, start=10, stop=70, seed=1, threads=1)
    bounds = [0, *sorted(cuts), 60]
    parts = [
        generation.generate(name, n=6, start=10 + first, stop=10 + last, seed=1, threads=threads)
        for first, last in pairwise(bounds)
    ]
    assert np.concatenate(parts).tobytes() == whole.tobytes()


@pytest.mark.parametrize("name", ["diagonally_dominant", "wishart", "condition", "failing"])
def test_threads_and_pieces_do_not_change_the_bits(name, monkeypatch):
    wanted = generation.generate(name, n=33, stop=300, threads=1)
    assert generation.generate(name, n=33, stop=300, threads=4).tobytes() == wanted.tobytes()
    monkeypatch.setattr(generation, "_CACHE_BYTES", 1)
    assert generation.generate(name, n=33, stop=300, threads=3).tobytes() == wanted.tobytes()


def test_another_process_makes_the_same_bits():
    program = (
        "import sys; from batchchol.datasets import generate\n"
        "sys.stdout.buffer.write(generate('condition', n=9, start=3, stop=40, seed=4).tobytes())"
    )
    made = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout
    assert made == generation.generate("condition", n=9, start=3, stop=40, seed=4).tobytes()


@pytest.mark.parametrize("name", RECIPES)
def test_float32_is_float64_rounded_once(name):
    for n in (1, 2, 8, 33):
        exact = generation.generate(name, n=n, stop=40, dtype="float64")
        assert generation.generate(name, n=n, stop=40).tobytes() == exact.astype("float32").tobytes()


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "failing"])
def test_name_seed_order_and_index_each_matter(name):
    one = generation.generate(name, n=6, stop=8)
    assert not np.array_equal(one, generation.generate(name, n=6, stop=8, seed=1))
    assert not np.array_equal(one, generation.generate(name, n=6, start=8, stop=16))
    assert len({matrix.tobytes() for matrix in one}) == 8
    streams = [recipe.stream for recipe in generation.catalogue().values()]
    assert len(set(streams)) == len(streams)


def test_indices_reach_past_two_to_the_32():
    far = generation.generate("banded", n=4, start=2**33 - 2, stop=2**33 + 2)
    assert np.array_equal(far[2:], generation.generate("banded", n=4, start=2**33, stop=2**33 + 2))
    assert len({matrix.tobytes() for matrix in far}) == 4


def test_stream_is_generate_in_bounded_slices():
    slices = generation.stream("wishart", n=8, start=5, stop=505, slice_bytes=64 * 8 * 8 * 4)
    assert (slices.batch, slices.n, slices.dtype) == (500, 8, "float32")
    parts = list(slices)
    assert [start for start, _ in parts] == list(range(5, 505, 64))
    assert all(len(dense) <= 64 for _, dense in parts)
    whole = generation.generate("wishart", n=8, start=5, stop=505)
    assert np.array_equal(np.concatenate([dense for _, dense in parts]), whole)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "layout",
    [Layout.canonical(), Layout.interleaved(), Layout.chunked(2), Layout.chunked(32), Layout.chunked(512)],
    ids=lambda layout: f"{layout.kind}{layout.chunk or ''}",
)
def test_fill_writes_the_same_matrices_into_any_layout(layout, dtype):
    for n, count in ((1, 1), (5, 1000), (33, 131)):
        batch = Batch.empty(n, count, layout, dtype)
        generation.fill(batch, "diagonally_dominant", start=7, seed=3, threads=2)
        wanted = generation.generate("diagonally_dominant", n=n, start=7, stop=7 + count, seed=3, dtype=dtype)
        assert np.array_equal(batch.to_dense(), wanted)
        fresh = Batch.from_dense(wanted, layout)
        assert np.array_equal(batch.data, fresh.data)  # and the padding is untouched


def test_fill_takes_parameters_and_empty_batches():
    batch = Batch.empty(4, 20, Layout.chunked(16))
    generation.fill(batch, "banded", bandwidth=0)
    assert not batch.to_dense()[:, ~np.eye(4, dtype=bool)].any()
    generation.fill(Batch.empty(4, 0, Layout.chunked(16)), "banded")


def test_empty_slices_are_empty():
    for name in RECIPES:
        assert generation.generate(name, n=3, start=4, stop=4).shape == (0, 3, 3)
    assert list(generation.stream("wishart", n=3, stop=0)) == []


def test_threads_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("BATCHCHOL_THREADS", "none")
    with pytest.raises(ValueError, match="BATCHCHOL_THREADS"):
        generation.generate("wishart", n=3, stop=4)
    assert generation.generate("wishart", n=3, stop=4, threads=1).shape == (4, 3, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "random"}, "name: got 'random', expected one of diagonally_dominant, "),
        ({"n": 0}, "n: got 0, expected 1 to 65535"),
        ({"n": 2**16}, "n: got 65536"),
        ({"start": -1}, "start: got -1"),
        ({"start": 5}, "stop: got 4, expected 5 to"),
        ({"stop": 2**63}, "stop: got"),
        ({"seed": -1}, "seed: got -1"),
        ({"seed": 2**64}, "seed: got"),
        ({"dtype": "float16"}, "dtype: got 'float16', expected float32 or float64"),
        ({"threads": 0}, "threads: got 0, expected at least 1"),
        ({"bandwidth": 2}, "wishart: got a parameter 'bandwidth', expected: columns"),
        ({"columns": 2.5}, "wishart: columns: got 2.5, expected an integer"),
        ({"columns": True}, "wishart: columns: got True"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        generation.generate(**{"name": "wishart", "n": 3, "stop": 4} | arguments)


def test_a_batch_beyond_memory_says_so_before_it_is_made():
    with pytest.raises(OutOfMemory, match="needs"):
        generation.generate("banded", n=100, stop=2**40)


@given(
    free=st.integers(0, 2**45),
    n=st.integers(1, 128),
    dtype=st.sampled_from(["float32", "float64"]),
    copies=st.integers(1, 5),
)
def test_batch_sizes_are_every_power_of_two_that_fits(free, n, dtype, copies):
    def needed(batch):
        return batch * (copies * n * n * np.dtype(dtype).itemsize + 4)

    sizes = generation.batch_sizes(free, n=n, dtype=dtype, copies=copies)
    assert sizes == [2**power for power in range(10, 64) if needed(2**power) <= free]


@pytest.mark.parametrize(
    ("arguments", "message"), [((-1, 4, 2), "free_bytes"), ((1, 0, 2), "n"), ((1, 4, 0), "copies")]
)
def test_batch_sizes_refuses_what_makes_no_sense(arguments, message):
    free, n, copies = arguments
    with pytest.raises(ValueError, match=f"{message}: got"):
        generation.batch_sizes(free, n=n, copies=copies)
