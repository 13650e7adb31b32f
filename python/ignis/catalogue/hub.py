"""Fetching a model from the Hugging Face hub; interrupted downloads are taken up again."""

from __future__ import annotations

from pathlib import Path

from ignis.catalogue.locate import HubModel
from ignis.errors import CatalogueError

# What a load reads of a repository with safetensors files, at its top.
PATTERNS = ["*.json", "*.safetensors", "tokenizer.model", "*.jinja", "merges.txt", "vocab.txt"]
# Copies of the weights in other layouts, and everything in folders below.
LEFT_OUT = ["consolidated*", "*/*"]


def fetch_hub(model: HubModel, cache_folder: Path) -> Path:
    """Download what a load needs and return the file or folder. Raises CatalogueError."""
    from huggingface_hub import HfApi, snapshot_download

    folder = model.folder(cache_folder)
    try:
        names = HfApi().list_repo_files(model.repository, revision=model.revision)
        file = _file_wanted(model, names)
        snapshot_download(
            model.repository,
            revision=model.revision,
            local_dir=folder,
            allow_patterns=[file] if file else PATTERNS,
            ignore_patterns=None if file else LEFT_OUT,
        )
    except CatalogueError:
        raise
    except Exception as error:  # the client raises classes of several libraries below it
        raise CatalogueError(_message(model, error)) from error
    kept = file or "."
    model.mark(cache_folder).write_text(kept + "\n", encoding="utf-8")
    return folder / kept


def _file_wanted(model: HubModel, names: list[str]) -> str | None:
    """The one GGUF file to fetch, or None for the folder of safetensors files."""
    ggufs = sorted(name for name in names if name.lower().endswith(".gguf"))
    if model.file is not None:
        if model.file not in names:
            raise CatalogueError(
                f"{model.repository} has no file {model.file}; it has {_listed(ggufs)}"
            )
        return model.file
    if any(name.endswith(".safetensors") and "/" not in name for name in names):
        return None
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        raise CatalogueError(
            f"{model.repository} holds several GGUF files; name one, as in "
            f"hf:{model.repository}/{ggufs[0]} (there are {_listed(ggufs)})"
        )
    raise CatalogueError(f"{model.repository} holds neither safetensors nor GGUF files")


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:8]) or "no GGUF file"
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown


def _message(model: HubModel, error: Exception) -> str:
    kind = type(error).__name__
    if kind == "GatedRepoError":
        return (
            f"{model.repository} asks its readers to accept a licence; do so on its page, then "
            "log in with `hf auth login`"
        )
    if kind in {"RepositoryNotFoundError", "RevisionNotFoundError"}:
        revision = f" at {model.revision}" if model.revision else ""
        return f"the hub has no repository {model.repository}{revision}, or not for you"
    if isinstance(error, OSError) and error.errno == 28:
        return "the disk is full; make room, or name another folder with --cache-dir"
    first = (str(error).strip().splitlines() or [""])[0]
    return f"could not fetch {model.repository} from the hub: {kind}: {first}"
