"""Images from files to tensors, and the cache that holds them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from app.artifacts import LocalArtifactStore
from app.datasets.snapshots import AddedSample, Snapshot
from tests.app.datasets.images import encoded
from worker.data.images import ImageCache, decode, labelled_images, normalised

ONE_IMAGE = 8 * 8  # bytes of pixels


@pytest.fixture
def store(tmp_path: Path) -> LocalArtifactStore:
    store = LocalArtifactStore(tmp_path)
    store.put_images("digits", {number: encoded(number) for number in range(1, 7)})
    store.put_images("letters", {1: encoded(100)})
    return store


def png(pixels: np.ndarray, path: Path) -> Path:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    path.write_bytes(file.getvalue())
    return path


def test_gray_pixels_are_read_as_they_are(tmp_path: Path) -> None:
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    image = decode(png(pixels, tmp_path / "a"), 8, 1)
    assert image.dtype == torch.uint8
    assert torch.equal(image, torch.from_numpy(pixels)[None])


def test_colours_come_first(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    image = decode(png(pixels, tmp_path / "a"), 6, 3)
    assert torch.equal(image, torch.from_numpy(pixels).permute(2, 0, 1))
    assert image.is_contiguous()


def test_gray_and_colour_are_turned_into_each_other(tmp_path: Path) -> None:
    gray = np.full((4, 4), 90, np.uint8)
    assert torch.equal(decode(png(gray, tmp_path / "gray"), 4, 3), torch.full((3, 4, 4), 90, dtype=torch.uint8))
    green = np.zeros((4, 4, 3), np.uint8)
    green[..., 1] = 255
    # Rec. 601 luma: 0.587 of 255.
    found = decode(png(green, tmp_path / "green"), 4, 1)
    assert torch.equal(found, torch.full((1, 4, 4), 150, dtype=torch.uint8))


@pytest.mark.parametrize("mode", ["RGBA", "P", "1", "LA"])
def test_other_modes_become_the_channels_asked_for(tmp_path: Path, mode: str) -> None:
    Image.new("L", (5, 5), 255).convert(mode).save(tmp_path / "a", "PNG")
    for channels in (1, 3):
        assert torch.equal(decode(tmp_path / "a", 5, channels), torch.full((channels, 5, 5), 255, dtype=torch.uint8))


@pytest.mark.parametrize("size", [(8, 8), (4, 16), (33, 2)])
def test_other_sizes_become_the_size_asked_for(tmp_path: Path, size: tuple[int, int]) -> None:
    Image.new("L", size, 77).save(tmp_path / "a", "PNG")
    assert torch.equal(decode(tmp_path / "a", 6, 1), torch.full((1, 6, 6), 77, dtype=torch.uint8))


def test_axes_are_not_swapped_by_resizing(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8), np.uint8)
    pixels[:4] = 200  # the upper half
    image = decode(png(pixels, tmp_path / "a"), 4, 1)
    assert bool((image[0, 0] == 200).all())
    assert bool((image[0, 3] == 0).all())


def test_pixels_become_numbers_from_minus_one_to_one() -> None:
    pixels = torch.tensor([[[0, 255, 51]]], dtype=torch.uint8)
    torch.testing.assert_close(normalised(pixels), torch.tensor([[[-1.0, 1.0, -0.6]]]))
    assert pixels.tolist() == [[[0, 255, 51]]]


def test_damaged_files_raise(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"no image")
    with pytest.raises(OSError, match="cannot identify"):
        decode(tmp_path / "a", 8, 1)


def test_images_are_read_in_the_order_asked_for(store: LocalArtifactStore) -> None:
    cache = ImageCache(10 * ONE_IMAGE)
    images = cache.read(store, "digits", [3, 1, 3], 8, 1)
    assert images.shape == (3, 1, 8, 8)
    for image, number in zip(images, (3, 1, 3), strict=True):
        assert torch.equal(image, decode(store.image_path("digits", number), 8, 1))
    assert cache.read(store, "digits", [], 8, 1).shape == (0, 1, 8, 8)


def holds(cache: ImageCache, store: LocalArtifactStore, number: int, dataset: str = "digits", size: int = 8) -> bool:
    """Whether the image is decoded already: it can be read with its file gone."""
    path = store.image_path(dataset, number)
    data = path.read_bytes()
    path.unlink()
    try:
        cache.read(store, dataset, [number], size, 1)
    except FileNotFoundError:
        return False
    finally:
        path.write_bytes(data)
    return True


def test_the_least_recently_used_images_leave_first(store: LocalArtifactStore) -> None:
    cache = ImageCache(3 * ONE_IMAGE)
    for number in (1, 2, 3, 1, 4):
        cache.read(store, "digits", [number], 8, 1)
    assert [number for number in range(1, 7) if holds(cache, store, number)] == [1, 3, 4]


def test_an_image_larger_than_the_budget_is_read_all_the_same(store: LocalArtifactStore) -> None:
    cache = ImageCache(1)
    assert cache.read(store, "digits", [1, 2, 3], 8, 1).shape == (3, 1, 8, 8)
    assert [number for number in (1, 2, 3) if holds(cache, store, number)] == [3]


def test_sizes_are_kept_apart_and_forgotten_together(store: LocalArtifactStore) -> None:
    cache = ImageCache(1 << 20)
    for size in (8, 4):
        cache.read(store, "digits", [1, 2], size, 1)
    assert not holds(cache, store, 1, size=16)
    cache.forget(store, "digits", [1, 99])
    assert not holds(cache, store, 1)
    assert not holds(cache, store, 1, size=4)
    assert holds(cache, store, 2)


def test_rows_of_other_data_sets_are_not_forgotten(store: LocalArtifactStore) -> None:
    cache = ImageCache(1 << 20)
    cache.read(store, "letters", [1], 8, 1)
    cache.read(store, "digits", [1], 8, 1)
    cache.forget(store, "digits", [1])
    assert holds(cache, store, 1, dataset="letters")


def test_forgotten_images_give_their_budget_back(store: LocalArtifactStore) -> None:
    cache = ImageCache(3 * ONE_IMAGE)
    cache.read(store, "digits", [1, 2, 3], 8, 1)
    cache.forget(store, "digits", [1, 2])
    cache.read(store, "digits", [4, 5], 8, 1)
    assert [number for number in range(1, 7) if holds(cache, store, number)] == [3, 4, 5]


def test_rows_of_a_snapshot_become_tensors(store: LocalArtifactStore) -> None:
    rows = [AddedSample(number, number % 3, number % 2, (number % 2, -1)) for number in range(1, 7)]
    snapshot = Snapshot.from_rows(rows, 2)
    architecture = {"name": "small_conv", "image_size": 8, "channels": 1}
    found = labelled_images(snapshot, snapshot.rows("train"), ImageCache(0), store, "digits", architecture, "cpu")
    assert found.sample_ids.tolist() == [3, 6]
    assert found.classes.tolist() == [1, 0]
    assert found.concepts.tolist() == [[1, -1], [0, -1]]
    assert found.images.dtype == torch.float32
    expected = normalised(torch.stack([decode(store.image_path("digits", number), 8, 1) for number in (3, 6)]))
    assert torch.equal(found.images, expected)


def test_what_is_done_to_tensors_does_not_reach_cache_or_snapshot(store: LocalArtifactStore) -> None:
    snapshot, cache = Snapshot.from_rows([AddedSample(1, 0, 0, (1,))], 1), ImageCache(1 << 20)
    architecture = {"image_size": 8, "channels": 1}
    first = labelled_images(snapshot, snapshot.rows("train"), cache, store, "digits", architecture, "cpu")
    expected = first.images.clone()
    first.images.zero_()
    first.concepts.fill_(-1)
    first.sample_ids.fill_(99)
    again = labelled_images(snapshot, snapshot.rows("train"), cache, store, "digits", architecture, "cpu")
    assert torch.equal(again.images, expected)
    assert again.concepts.tolist() == [[1]]
    assert again.sample_ids.tolist() == [1]


def test_the_same_row_of_two_stores_is_two_images(tmp_path: Path) -> None:
    """Found by a benchmark that ran several draws of the same data set in one process."""
    cache = ImageCache(1 << 20)
    seen = []
    for shade in (0, 255):
        store = LocalArtifactStore(tmp_path / str(shade))
        file = io.BytesIO()
        Image.new("L", (8, 8), shade).save(file, "PNG")
        store.put_images("digits", {1: file.getvalue()})
        seen.append(int(cache.read(store, "digits", [1], 8, 1).max()))
    assert seen == [0, 255]
