"""`python -m batchchol dataset`: what it writes, prints and refuses."""

import os

import numpy as np
import pytest

from batchchol.cli import main
from batchchol.datasets import batch_files, generation


def run(*arguments):
    return main(["dataset", *map(str, arguments)])


def test_list_names_every_recipe_and_parameter(capsys):
    assert run("list") == 0
    shown = capsys.readouterr().out
    for recipe in generation.catalogue().values():
        assert f"{recipe.name}\n    {recipe.description}\n" in shown
        assert all(f"--param {name}=" in shown for name in recipe.parameters)
    assert "needs: scikit-learn" in shown


def test_generate_writes_what_the_library_makes(tmp_path, capsys):
    npy, text = tmp_path / "a.npy", tmp_path / "a.txt"
    chosen = ("--n", 5, "--batch", 30, "--start", 4, "--seed", 9, "--param", "condition=50", "--dtype", "float64")
    assert run("generate", "condition", *chosen, "--out", npy) == 0
    assert capsys.readouterr().out == f"{npy}: 30 matrices of order 5, float64, 6,128 bytes\n"
    assert run("generate", "condition", *chosen, "--out", text) == 0
    wanted = generation.generate("condition", n=5, start=4, stop=34, seed=9, dtype="float64", condition=50)
    assert np.array_equal(generation.load(npy), wanted)
    assert np.array_equal(generation.read_text(text), wanted)


def test_ladder_makes_what_is_missing_up_to_the_size(tmp_path, capsys):
    chosen = ("ladder", "wishart", "--n", 4, "--seed", 3, "--up-to", "300KiB")
    assert run(*chosen) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == ["1,024", "2,048", "4,096"]
    files = [tmp_path / f"wishart_n4_float32_seed3_{batch}.npy" for batch in (1024, 2048, 4096)]
    assert run(*chosen, "--out", tmp_path) == 0
    assert sorted(tmp_path.iterdir()) == files
    assert np.array_equal(generation.load(files[2]), generation.generate("wishart", n=4, stop=4096, seed=3))
    kept = files[0].stat().st_mtime_ns
    files[1].unlink()
    capsys.readouterr()
    assert run(*chosen, "--out", tmp_path) == 0
    assert ["already there" in line for line in capsys.readouterr().out.splitlines()] == [True, False, True]
    assert files[0].stat().st_mtime_ns == kept
    assert np.array_equal(generation.load(files[1]), generation.load(files[2])[:2048])


@pytest.mark.parametrize(("n", "batch", "seed"), [(4, 1023, 3), (5, 1024, 3), (4, 1024, 4)])
def test_ladder_refuses_another_batch_in_a_files_place(n, batch, seed, tmp_path, capsys):
    path = tmp_path / "wishart_n4_float32_seed3_1024.npy"
    generation.save(path, generation.generate("wishart", n=n, stop=batch, seed=seed))
    assert run("ladder", "wishart", "--n", 4, "--seed", 3, "--up-to", "64KiB", "--out", tmp_path) == 2
    assert "another batch than this: remove the file" in capsys.readouterr().err


def test_ladder_is_refused_before_it_begins_if_the_disk_is_too_small(tmp_path, capsys, monkeypatch):
    usage = batch_files.shutil._ntuple_diskusage(1 << 20, 0, 400 << 10)
    monkeypatch.setattr("batchchol.datasets.files.shutil.disk_usage", lambda _: usage)
    assert run("ladder", "wishart", "--n", 4, "--up-to", "256KiB", "--out", tmp_path) == 2
    assert "needs 458,752 bytes and 409,600 bytes are free there" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_generate_reads_lists(tmp_path):
    out = tmp_path / "a.npy"
    assert (
        run(
            "generate",
            "failing",
            "--n",
            5,
            "--batch",
            9,
            "--param",
            "members=7,2",
            "--param",
            "minors=3",
            "--out",
            out,
        )
        == 0
    )
    wanted = generation.generate("failing", n=5, stop=9, members=(2, 7), minors=(3,))
    assert np.array_equal(generation.load(out), wanted)


def test_convert_goes_there_and_back(tmp_path):
    a = generation.generate("wishart", n=6, stop=20)
    generation.save(tmp_path / "a.npy", a)
    assert run("convert", tmp_path / "a.npy", tmp_path / "a.txt") == 0
    assert run("convert", tmp_path / "a.txt", tmp_path / "b.npy", "--dtype", "float32") == 0
    assert (tmp_path / "b.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()
    assert run("convert", tmp_path / "a.txt", tmp_path / "c.npy") == 0
    assert run("convert", tmp_path / "c.npy", tmp_path / "d.npy", "--dtype", "float32") == 0
    assert generation.load(tmp_path / "c.npy").dtype == np.float64
    assert (tmp_path / "d.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()


def test_show_says_what_is_in_a_file(tmp_path, capsys):
    a = generation.generate("failing", n=3, stop=20, members=(6, 11), minors=(2,))
    a[4, 0, 2] += 1
    a[9, 1, 1] = np.nan
    generation.save(tmp_path / "a.npy", a)
    generation.write_text(tmp_path / "a.txt", a)
    for name, kind in (("a.npy", "npy, float32"), ("a.txt", "text, read as float64")):
        assert run("show", tmp_path / name) == 0
        shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        assert (shown["format"], shown["batch"], shown["n"]) == (kind, "20", "3")
        assert shown["bytes"] == f"{(tmp_path / name).stat().st_size:,}"
        assert shown["range"] == f"{np.nanmin(a):.9g} to {np.nanmax(a):.9g}"
        assert shown["finite"] == "19 of 20"
        assert shown["symmetric"] == "19 of 20"
        assert shown["definite"] == "17 of 20; first other: matrix 6, leading minor 2"


def test_show_of_an_empty_batch(tmp_path, capsys):
    generation.save(tmp_path / "a.npy", np.empty((0, 4, 4)))
    assert run("show", tmp_path / "a.npy") == 0
    assert "no numbers" in capsys.readouterr().out


def test_show_prints_one_matrix(tmp_path, capsys):
    a = generation.generate("wishart", n=3, stop=5)
    generation.save(tmp_path / "a.npy", a)
    assert run("show", tmp_path / "a.npy", "--matrix", 4) == 0
    shown = [[np.float32(word) for word in line.split()] for line in capsys.readouterr().out.splitlines()]
    assert np.array_equal(shown, a[4])


def test_long_work_reports_progress(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(batch_files, "_REPORT_SECONDS", 0.0)
    assert run("generate", "banded", "--n", 2, "--batch", 7, "--out", tmp_path / "a.npy") == 0
    assert "batchchol: 7 of 7 matrices written (100%)\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "random", "--n", 3, "--batch", 4, "--out", "a.npy"), "name: got 'random', expected one of"),
        (("generate", "banded", "--n", 0, "--batch", 4, "--out", "a.npy"), "n: got 0"),
        (("generate", "banded", "--n", 3, "--batch", -4, "--out", "a.npy"), "--batch: got -4, expected at least 0"),
        (("generate", "banded", "--n", 3, "--batch", 4, "--seed", -1, "--out", "a.npy"), "seed: got -1"),
        (
            ("generate", "banded", "--n", 3, "--batch", 4, "--param", "width=2", "--out", "a.npy"),
            "expected: bandwidth",
        ),
        (
            ("generate", "banded", "--n", 3, "--batch", 4, "--param", "bandwidth", "--out", "a.npy"),
            "expected KEY=VALUE",
        ),
        (
            ("generate", "banded", "--n", 3, "--batch", 4, "--param", "bandwidth=x", "--out", "a.npy"),
            "got 'x', expected an integer",
        ),
        (("convert", "missing.npy", "a.npy"), "missing.npy: opening: No such file"),
        (("convert", "missing.txt", "a.npy"), "missing.txt: opening: No such file"),
        (("show", "damaged.txt"), "damaged.txt: line 5: the file ends before number 2 of row 2 of matrix 1 of 1"),
        (("convert", "damaged.txt", "a.npy"), "damaged.txt: line 5"),
        (("convert", "large.npy", "a.npy", "--dtype", "float32"), "does not fit in float32"),
        (("show", "large.npy", "--matrix", 1), "--matrix: got 1, expected 0 to 0"),
    ],
)
def test_bad_values_are_messages_and_leave_no_file(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged.txt").write_text("1\n2\n1 2\n3\n")
    generation.save("large.npy", np.full((1, 1, 1), 1e300))
    assert run(*arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("batchchol: error: ")
    assert message in shown
    assert sorted(os.listdir(tmp_path)) == ["damaged.txt", "large.npy"]


@pytest.mark.parametrize("name", ["a.npy", "a.txt"])
def test_a_batch_that_fills_the_disk_is_refused_at_once(tmp_path, capsys, name):
    assert run("generate", "wishart", "--n", 32, "--batch", 10**12, "--out", tmp_path / name) == 2
    assert "bytes are free there: write less" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_other_suffixes_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        run("generate", "banded", "--n", 3, "--batch", 4, "--out", tmp_path / "a.csv")
    assert "expected a name that ends in .npy or .txt" in capsys.readouterr().err
