# SPDX-License-Identifier: Apache-2.0
"""Embedding once what is equal, whatever happens to the files in between."""

from __future__ import annotations

import io
import resource
import shutil
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedface_flwr.errors import DataError
from fedface_flwr.evaluation import embedder as embedder_module
from fedface_flwr.evaluation import embedder_store
from fedface_flwr.evaluation.embedder import CachingEmbedder, default_cache
from fedface_flwr.evaluation.embedder_store import SUFFIX, EmbeddingStore

SIZE = 4


class Gallery:
    """Pictures whose encoded bytes are their pixels."""

    def __init__(self, images: np.ndarray, recipes: dict[int, bytes] | None = None) -> None:
        self.images, self.recipes, self.threads = images, recipes or {}, set[str]()

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> tuple[bytes, str]:
        return self.images[index].tobytes(), f"gallery: picture {index}"

    def recipe(self, index: int) -> bytes:
        return self.recipes.get(index, b"")

    def pixels(self, data: bytes, index: int, size: int, where: str) -> np.ndarray:
        self.threads.add(threading.current_thread().name)
        if data == bytes(3 * SIZE * SIZE):
            raise DataError(f"{where}: black")
        return np.frombuffer(data, np.uint8).reshape(3, size, size)


class Linear:
    """A backbone that multiplies pixels by a matrix and counts what it is given."""

    title, input_size, dim = "linear", SIZE, 5

    def __init__(self, digest: str = "one", fails_after: int | None = None) -> None:
        self.digest, self.seen, self.batches, self.fails_after = digest, 0, list[int](), fails_after
        self.matrix = np.random.default_rng(0).integers(-9, 10, (3 * SIZE * SIZE, 5)).astype(np.float32)

    def embed(self, images: np.ndarray) -> np.ndarray:
        assert images.dtype == np.uint8
        assert images.flags.c_contiguous
        if self.fails_after is not None and self.seen >= self.fails_after:
            raise KeyboardInterrupt
        self.seen += len(images)
        self.batches.append(len(images))
        return images.reshape(len(images), 3 * SIZE * SIZE).astype(np.float32) @ self.matrix

    def expected(self, images: np.ndarray) -> np.ndarray:
        # Whole numbers below 2^24: exact in float32, in whatever order they are summed.
        return images.reshape(len(images), 3 * SIZE * SIZE).astype(np.float32) @ self.matrix


def pictures(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 256, (count, 3, SIZE, SIZE)).astype(np.uint8)


def embedder(backbone: Linear, cache: Path, batch_size: int = 4, said: io.StringIO | None = None) -> CachingEmbedder:
    return CachingEmbedder(backbone, cache, batch_size, Console(file=said or io.StringIO(), width=200))


def shards(cache: Path) -> list[Path]:
    return sorted(cache.rglob(f"*{SUFFIX}"))


@pytest.mark.parametrize("count", [0, 1, 4, 7, 33])
def test_embeddings_come_in_order_with_their_mirror_images(tmp_path, count):
    backbone, images = Linear(), pictures(count)
    result = embedder(backbone, tmp_path)(Gallery(images), flip=True, what="gallery")
    np.testing.assert_array_equal(result.plain, backbone.expected(images))
    np.testing.assert_array_equal(result.mirrored, backbone.expected(images[..., ::-1]))
    assert backbone.seen == 2 * count
    assert max(backbone.batches, default=0) <= 4


def test_equal_pictures_are_embedded_once_and_others_of_another_recipe_apart(tmp_path):
    backbone, images = Linear(), pictures(3)[[0, 1, 0, 2, 0, 1]]
    result = embedder(backbone, tmp_path)(Gallery(images, {4: b"points"}), flip=False, what="gallery")
    np.testing.assert_array_equal(result.plain, backbone.expected(images))
    assert result.mirrored is None
    assert backbone.seen == 4


def test_a_recipe_is_not_mistaken_for_content(tmp_path):
    call = embedder(Linear(), tmp_path)
    gallery = Gallery(pictures(1))
    keys = set()
    for recipe, data in ((b"ab", b"c"), (b"a", b"bc"), (b"", b"abc")):
        gallery.recipes, gallery.read = {0: recipe}, lambda index, data=data: (data, "")
        call_state = embedder_module._Call(gallery, None, lambda count: None, {})
        keys.add(call_state._read(0)[0])
    assert len(keys) == 3
    assert call.embedded == 0


def test_a_second_run_embeds_nothing_and_mirror_images_only_when_asked(tmp_path):
    first, images = Linear(), pictures(9)
    embedder(first, tmp_path)(Gallery(images), flip=False, what="gallery")
    second = Linear()
    result = embedder(second, tmp_path)(Gallery(images), flip=True, what="gallery")
    assert (first.seen, second.seen) == (9, 9)
    np.testing.assert_array_equal(result.plain, first.expected(images))
    np.testing.assert_array_equal(result.mirrored, first.expected(images[..., ::-1]))
    third = Linear()
    again = embedder(third, tmp_path)(Gallery(images[::-1]), flip=True, what="other")
    assert third.seen == 0
    np.testing.assert_array_equal(again.plain, result.plain[::-1])


def test_another_backbone_shares_nothing(tmp_path):
    embedder(Linear("one"), tmp_path)(Gallery(pictures(3)), flip=False, what="gallery")
    other = Linear("two")
    embedder(other, tmp_path)(Gallery(pictures(3)), flip=False, what="gallery")
    assert other.seen == 3


def test_interrupted_work_is_kept(tmp_path):
    images = pictures(20)
    with pytest.raises(KeyboardInterrupt):
        embedder(Linear(fails_after=12), tmp_path)(Gallery(images), flip=False, what="gallery")
    rest = Linear()
    result = embedder(rest, tmp_path)(Gallery(images), flip=False, what="gallery")
    assert rest.seen == 8
    np.testing.assert_array_equal(result.plain, rest.expected(images))


def test_a_bad_picture_is_named_and_what_came_before_is_kept(tmp_path):
    images = pictures(10)
    images[8] = 0
    with pytest.raises(DataError, match="gallery: picture 8: black"):
        embedder(Linear(), tmp_path)(Gallery(images), flip=False, what="gallery")
    rest = Linear()
    embedder(rest, tmp_path)(Gallery(images[:8]), flip=False, what="gallery")
    assert rest.seen == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_embedding_that_is_not_finite_names_its_picture(tmp_path, bad):
    backbone = Linear()
    backbone.matrix[:] = bad
    with pytest.raises(DataError, match="gallery: picture 0: linear gives an embedding that is not finite"):
        embedder(backbone, tmp_path)(Gallery(pictures(2)), flip=False, what="gallery")
    assert shards(tmp_path) == []


def test_a_backbone_of_another_shape_is_an_error(tmp_path):
    backbone = Linear()
    backbone.dim = 6
    with pytest.raises(DataError, match=r"embeddings have shape \(2, 5\) and not \(2, 6\)"):
        embedder(backbone, tmp_path)(Gallery(pictures(2)), flip=False, what="gallery")


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "grow", "dim", "rows"])
def test_damaged_shards_are_said_to_be_and_computed_again(tmp_path, damage):
    images = pictures(6)
    embedder(Linear(), tmp_path)(Gallery(images), flip=False, what="gallery")
    (path,) = shards(tmp_path)
    content = bytearray(path.read_bytes())
    match damage:
        case "flip":
            content[len(content) // 2] ^= 1
        case "cut":
            del content[-5:]
        case "empty":
            content.clear()
        case "grow":
            content += b"x"
        case "dim":
            content[16:24] = (1 << 60).to_bytes(8, "little")
        case "rows":
            content[8:16] = (1 << 62).to_bytes(8, "little")
    path.write_bytes(content)
    backbone, said = Linear(), io.StringIO()
    result = embedder(backbone, tmp_path, said=said)(Gallery(images), flip=False, what="gallery")
    assert backbone.seen == 6
    assert f"{path}: damaged" in said.getvalue()
    np.testing.assert_array_equal(result.plain, backbone.expected(images))
    again, said = Linear(), io.StringIO()
    embedder(again, tmp_path, said=said)(Gallery(images), flip=False, what="gallery")
    assert (again.seen, said.getvalue(), path.exists()) == (0, "", False)


def test_of_damaged_and_sound_shards_the_sound_ones_stay(tmp_path):
    images = pictures(9)
    for first in range(0, 9, 3):
        embedder(Linear(), tmp_path)(Gallery(images[first : first + 3]), flip=False, what="gallery")
    damaged, *sound = shards(tmp_path)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    contents = {path: path.read_bytes() for path in sound}
    backbone = Linear()
    embedder(backbone, tmp_path)(Gallery(images), flip=False, what="gallery")
    assert backbone.seen == 3
    assert {path: path.read_bytes() for path in sound} == contents
    assert not damaged.exists()


def test_a_damaged_shard_that_is_not_needed_is_told_once(tmp_path):
    images = pictures(2)
    for at in range(2):
        embedder(Linear(), tmp_path)(Gallery(images[at : at + 1]), flip=False, what="gallery")
        if at == 0:
            (damaged,) = shards(tmp_path)
    damaged.write_bytes(b"x")
    for told in (1, 0):
        backbone, said = Linear(), io.StringIO()
        embedder(backbone, tmp_path, said=said)(Gallery(images[1:]), flip=False, what="gallery")
        assert (backbone.seen, said.getvalue().count(": damaged (")) == (0, told)


def test_a_shard_is_not_removed_while_its_embeddings_cannot_be_kept(tmp_path):
    images = pictures(3)
    embedder(Linear(), tmp_path)(Gallery(images), flip=False, what="gallery")
    (damaged,) = shards(tmp_path)
    damaged.write_bytes(b"x")
    said, limits = io.StringIO(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        embedder(Linear(), tmp_path, said=said)(Gallery(images), flip=False, what="gallery")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "embeddings cannot be kept" in said.getvalue()
    assert damaged.exists()


def test_full_shards_are_written_as_the_work_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(embedder_store, "SHARD_ROWS", 4)
    backbone, images = Linear(), pictures(10)
    embedder(backbone, tmp_path)(Gallery(images), flip=False, what="gallery")
    assert len(shards(tmp_path)) == 3
    assert [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")] == []
    again = Linear()
    embedder(again, tmp_path)(Gallery(images), flip=False, what="gallery")
    assert again.seen == 0


def test_what_has_waited_for_long_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(embedder_store, "FLUSH_SECONDS", 0.0)
    store = EmbeddingStore(tmp_path, 2, print)
    store.put(b"k" * 16, np.array([1, 2], dtype=np.float32))
    # Nothing was flushed by hand: another process finds it already.
    assert len(EmbeddingStore(tmp_path, 2, print)) == 1


def test_two_at_once_share_a_folder(tmp_path):
    images = pictures(40)
    with ThreadPoolExecutor(2) as pool:
        results = list(
            pool.map(
                lambda order: embedder(Linear(), tmp_path)(Gallery(images[::order]), flip=True, what="gallery"), (1, -1)
            )
        )
    np.testing.assert_array_equal(results[0].plain, results[1].plain[::-1])
    backbone = Linear()
    embedder(backbone, tmp_path)(Gallery(images), flip=True, what="gallery")
    assert backbone.seen == 0


def test_what_another_process_adds_is_found(tmp_path):
    images = pictures(5)
    waiting = Linear()
    call = embedder(waiting, tmp_path)
    embedder(Linear(), tmp_path)(Gallery(images), flip=False, what="gallery")
    call(Gallery(images), flip=False, what="gallery")
    assert waiting.seen == 0


def test_large_results_lie_in_an_unnamed_file(tmp_path, monkeypatch):
    monkeypatch.setattr(embedder_module, "_LARGEST_IN_MEMORY", 10)
    backbone, images = Linear(), pictures(9)
    result = embedder(backbone, tmp_path)(Gallery(images), flip=False, what="gallery")
    assert isinstance(result.plain, np.memmap)
    np.testing.assert_array_equal(result.plain, backbone.expected(images))
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_the_folder_is_for_its_owner_only(tmp_path):
    cache = tmp_path / "new" / "cache"
    embedder(Linear(), cache)(Gallery(pictures(1)), flip=False, what="gallery")
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_pictures_are_decoded_off_the_main_thread_and_progress_is_quiet_off_a_terminal(tmp_path):
    gallery, said = Gallery(pictures(8)), io.StringIO()
    embedder(Linear(), tmp_path, said=said)(gallery, flip=False, what="gallery")
    assert threading.current_thread().name not in gallery.threads
    assert said.getvalue() == ""


def test_progress_names_what_is_embedded_on_a_terminal(tmp_path):
    said = io.StringIO()
    console = Console(file=said, force_terminal=True, width=100)
    CachingEmbedder(Linear(), tmp_path, 4, console)(Gallery(pictures(8)), flip=False, what="[lfw]")
    assert "embedding [lfw]" in said.getvalue()
    assert "8/8" in said.getvalue()


def test_default_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "fedface" / "embeddings"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_cache() == tmp_path / "home" / ".cache" / "fedface" / "embeddings"


def test_the_store_counts_what_it_holds(tmp_path):
    store = EmbeddingStore(tmp_path / "store", 2, print)
    store.put(b"k" * 16, np.array([1, 2], dtype=np.float32))
    assert len(store) == 1
    store.flush()
    store.flush()
    assert len(store) == len(EmbeddingStore(tmp_path / "store", 2, print)) == 1
    assert store.get(b"k" * 16).tolist() == [1, 2]
    assert store.get(b"o" * 16) is None


def test_a_disk_that_takes_nothing_is_named_and_costs_the_cache_alone(tmp_path):
    images, said = pictures(9), io.StringIO()
    embed = embedder(Linear(), tmp_path / "cache", said=said)
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_bytes(b"in the way")
    result = embed(Gallery(images), flip=False, what="gallery")
    np.testing.assert_array_equal(result.plain, Linear().expected(images))
    assert "embeddings cannot be kept" in said.getvalue()
    assert "choose another --cache" in said.getvalue()
