"""Lengths and unit quaternions of numbers whose squares float64 cannot represent."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seqrecord.camera.conventions import pose_matrices
from seqrecord.camera.relative import ClipPoses, mean_translations
from seqrecord.camera.rigs import intrinsics_matrices
from seqrecord.store.cameras.rotations import rotations_of, unit_quaternions, vector_lengths

AXIS = np.array([0.36, 0.48, 0.48, 0.64])


@pytest.mark.parametrize("size", [1e-150, 1e-3, 1.0, 1e3, 1e150])
def test_lengths_that_float64_represents(size: float) -> None:
    assert vector_lengths(AXIS * size).item() == pytest.approx(size, rel=1e-15)
    np.testing.assert_allclose(unit_quaternions(AXIS * size), AXIS, rtol=1e-14)
    turn = rotations_of(unit_quaternions(AXIS * size))
    np.testing.assert_allclose(turn @ turn.T, np.eye(3), atol=1e-14)


@pytest.mark.parametrize("size", [5e-324, 1e-300, 1e-160, 1e-154, 1e155, 1e300, np.inf, np.nan])
def test_lengths_that_float64_does_not_represent(size: float) -> None:
    """Their squares are 0, of few digits, or infinite: never another rotation."""
    quaternions = np.array([AXIS * size, AXIS])
    assert np.isnan(vector_lengths(quaternions)).tolist() == [True, False]
    assert np.isnan(unit_quaternions(quaternions)).all(axis=1).tolist() == [True, False]
    values = np.array([[1.0, 2, 3, *quaternion] for quaternion in quaternions])
    poses, missing = pose_matrices(values)
    assert missing.tolist() == [True, False]
    assert (poses[0] == 0).all()
    np.testing.assert_allclose(poses[1, :3, :3] @ poses[1, :3, :3].T, np.eye(3), atol=1e-14)


def test_a_vector_of_0_has_a_length_and_no_direction() -> None:
    assert vector_lengths([0.0, 0.0, -0.0]).item() == 0
    assert np.isnan(unit_quaternions([0.0, 0.0, 0.0, 0.0])).all()


@pytest.mark.parametrize("size", [1e-160, 1e160])
def test_a_scale_that_float64_does_not_represent_is_unknown(size: float) -> None:
    poses = np.tile(np.eye(4), (2, 3, 1, 1))
    poses[:, 1:, :3, 3] = [3.0, 0, 4]
    poses[1, 2, :3, 3] *= size
    known, frames = np.zeros((2, 3), bool), np.tile(np.arange(3), (2, 1))
    first, second = mean_translations({"image": ClipPoses(poses, known, known, frames)}, "first")
    assert first == 5
    assert math.isnan(second)


@pytest.mark.parametrize("shape", [(4,), (3, 3)])
def test_intrinsics_beyond_float32_are_missing(shape: tuple[int, ...]) -> None:
    stored = np.ones((3, *shape))
    stored[1].flat[0], stored[2].flat[2] = 1e39, np.nan
    matrices, missing = intrinsics_matrices(stored, np.ones(3, bool))
    assert missing.tolist() == [False, True, True]
    assert np.isfinite(matrices.astype(np.float32)).all()
