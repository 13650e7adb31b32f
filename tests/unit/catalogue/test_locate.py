"""From a name to a path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ignis.catalogue import CATALOGUE, DEFAULT_ID, model_id, model_path
from ignis.catalogue.locate import HubModel, entry_path, fetched_path, hub_model
from ignis.errors import CatalogueError


def test_a_path_is_itself_and_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"x")
    assert model_path(str(file), tmp_path) == file
    assert model_path(str(tmp_path), tmp_path) == tmp_path
    with pytest.raises(CatalogueError, match=f"did you mean {DEFAULT_ID}"):
        model_path("smollm-135m", tmp_path)


def test_a_model_that_is_not_here_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=f"ignis models fetch {DEFAULT_ID}"):
        model_path(DEFAULT_ID, tmp_path)
    with pytest.raises(CatalogueError, match="ignis models fetch hf:a/b"):
        model_path("hf:a/b", tmp_path)


def test_a_file_of_another_size_is_not_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = replace(CATALOGUE[DEFAULT_ID], bytes=3)
    monkeypatch.setitem(CATALOGUE, DEFAULT_ID, entry)
    path = entry_path(entry, tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"12")
    assert fetched_path(DEFAULT_ID, tmp_path) is None
    path.write_bytes(b"123")
    assert fetched_path(DEFAULT_ID, tmp_path) == path


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("hf:a/b", HubModel("a", "b")),
        ("hf:a-1/B.c_2@v1.0", HubModel("a-1", "B.c_2", None, "v1.0")),
        ("hf:a/b/x-Q4.gguf", HubModel("a", "b", "x-Q4.gguf")),
        ("hf:a/b/sub/x.gguf@main", HubModel("a", "b", "sub/x.gguf", "main")),
    ],
)
def test_hub_names(name: str, model: HubModel) -> None:
    assert hub_model(name) == model


@pytest.mark.parametrize(
    "name",
    ["hf:", "hf:a", "hf:/b", "hf:../b", "hf:a/..", "hf:a/b/../c.gguf", "hf:a/b c", "hf:a/b@"],
)
def test_names_that_are_none_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="not the name of a repository"):
        model_path(name, tmp_path)


def test_the_name_clients_use(tmp_path: Path) -> None:
    assert model_id(DEFAULT_ID) == DEFAULT_ID
    assert model_id("hf:a/Qwen3-0.6B") == "Qwen3-0.6B"
    assert model_id("hf:a/b/x-Q4.gguf") == "x-Q4"
    assert model_id("/m/Some.Model-Q4_1.gguf") == "Some.Model-Q4_1"
    assert model_id("/m/Qwen3-0.6B/") == "Qwen3-0.6B"
