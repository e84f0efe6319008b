"""The applications of docs/examples, at small sizes: they compute what their first lines say."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.times import padded

from .programs import EXAMPLES, example


@pytest.fixture(autouse=True)
def _as_programs_find_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def test_als_takes_the_best_factors_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    als, als_cores, factors = example("als"), example("als_cores"), 16
    monkeypatch.setattr(als_cores, "SLICE_ELEMENTS", 20 * factors**2)
    ratings = als.made_up_ratings(1e-4)
    fixed = np.random.default_rng(1).normal(0, 0.1, (ratings.shape[1], factors)).astype(np.float32)
    found = np.full((ratings.shape[0], factors), np.nan, np.float32)
    als_cores.half_step(als_cores.placed(ratings, factors), fixed, found, 0.05, als.batchchol.solve)
    of_libraries = np.full_like(found, np.nan)
    step, _ = padded.steps(np.asarray, 1 << 12, ratings, factors, 0.05, als.batchchol.solve)
    step(fixed, of_libraries)
    y, dense = fixed.astype(np.float64), ratings.toarray().astype(np.float64)
    a = np.einsum("if,ui,ig->ufg", y, np.where(dense > 0, dense, 1), y) + 0.05 * np.eye(factors)
    want = np.linalg.solve(a, (dense @ y)[:, :, None])[:, :, 0]
    for each in (found, of_libraries):
        np.testing.assert_allclose(each, want, rtol=2e-3, atol=2e-4)


def test_als_gets_better_with_each_iteration() -> None:
    als = example("als")
    ratings = als.made_up_ratings(1e-3)
    losses = [als.loss(ratings, *als.train(ratings, 8, iterations)[:2]) for iterations in (1, 2, 4)]
    assert losses == sorted(losses, reverse=True)
    users, items, _ = als.train(ratings, 8, 4)
    scores, seen = users @ items.T, ratings.toarray() > 0
    # A user's own genre is every second film.
    own = np.arange(items.shape[0]) % 2 == np.arange(users.shape[0])[:, None] % 2
    unseen = np.where(seen, -np.inf, scores).argmax(1)
    assert own[np.arange(len(users)), unseen].mean() > 0.7


def test_als_reads_movielens(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    path.write_text("userId,movieId,rating,timestamp\n7,50,4.5,1\n7,10,3.0,2\n90,50,0.5,3\n")
    np.testing.assert_array_equal(example("als").read_ratings(path).toarray(), [[3, 4.5], [0, 0.5]])


def test_kalman_filters_are_those_of_the_textbook() -> None:
    kalman = example("kalman")
    model = kalman.constant_velocity(6)
    true, z = kalman.measurements(model, 40, 30)
    found = np.asarray(kalman.run(model, *kalman.start(6, 40), z))
    x, p, (f, q, h, r) = np.zeros(6), 10 * np.eye(6), (each.astype(np.float64) for each in model)
    for step, measured in enumerate(z[:, 0].astype(np.float64)):
        x, p = f @ x, f @ p @ f.T + q
        k = p @ h.T @ np.linalg.inv(h @ p @ h.T + r)
        x, p = x + k @ (measured - h @ x), p - k @ h @ p
        np.testing.assert_allclose(found[step, 0], x, rtol=1e-3, atol=1e-3)
    places = slice(0, 3)
    error, raw = (np.std(each[..., places] - true[-1][:, places]) for each in (found[-1], z[-1]))
    assert error < 0.7 * raw


def test_masses_are_those_of_the_chain() -> None:
    physics = example("physics")
    mass, force = physics.chains(50, 7)
    theta = np.random.default_rng(0).uniform(-np.pi, np.pi, (50, 7))
    speeds, along = np.random.default_rng(1).normal(size=7), (np.arange(1000) + 0.5) / 1000
    # Twice the kinetic energy: of points along each link, which moves with the end of the one before it.
    joint, energy = np.zeros(2), 0.0
    for angle, speed in zip(theta[0], speeds, strict=True):
        swing = speed * np.array([-np.sin(angle), np.cos(angle)])
        energy += np.mean(np.sum((joint + along[:, None] * swing) ** 2, axis=1))
        joint = joint + swing
    assert speeds @ mass[0] @ speeds == pytest.approx(energy, rel=1e-4)
    found = physics.accelerations(mass, force)
    np.testing.assert_allclose(np.einsum("wij,wj->wi", mass, found), force, rtol=1e-3, atol=1e-3)


def test_gaussian_processes_learn() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")
    gaussian_process = example("gaussian_process")
    x, y = gaussian_process.data(6, 10)
    parameters = torch.tensor([0.3, 1.0, 0.1]).log().repeat(6, 1).double()
    values, info, _ = gaussian_process.negative_log_likelihood(x.double(), y.double(), parameters)
    k = torch.exp(-(((x[0, :, None] - x[0]) / 0.3) ** 2) / 2).double() + 0.1 * torch.eye(10)
    normal = torch.distributions.MultivariateNormal(torch.zeros(10).double(), k)
    assert float(values[0]) == pytest.approx(-float(normal.log_prob(y[0].double())), rel=1e-6)
    assert not info.any()
    _, history, _ = gaussian_process.fit(x, y, 20)
    assert history[-1] < history[0] - 1
    noiseless = torch.tensor([3.0, 1.0, 1e-12]).log().repeat(6, 1)
    values, info, added = gaussian_process.negative_log_likelihood(x, y, noiseless)
    assert bool((added > 0).all())
    assert bool(values.isfinite().all())
    assert not info.any()


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("als", ["--scale", "0.0002", "--factors", "4", "--iterations", "2"], "loss: "),
        ("kalman", ["--n", "4", "--filters", "20", "--steps", "5"], "20 filters of n = 4: "),
        ("physics", ["--n", "6", "--worlds", "30", "--steps", "2"], "30 worlds of n = 6: "),
    ],
)
def test_they_run_as_programs(
    name: str, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    example(name).main()
    assert said in capsys.readouterr().out
