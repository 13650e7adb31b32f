"""The texts made from the table."""

from __future__ import annotations

from pathlib import Path

from ignis.config import OPTIONS, load_config
from ignis.config.folders import user_cache_folder, user_config_folder
from ignis.config.listing import example_file, markdown_page, values_in_force


def test_the_example_file_changes_nothing_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(example_file(), encoding="utf-8")
    config = load_config(environ={}, config_file=path)
    assert not any(config.named(key) for key in OPTIONS)


def test_the_example_file_loads_with_every_line_taken_in(tmp_path: Path) -> None:
    # "#key: value" is an option, "# text" a comment.
    lines = [
        line.replace("#", "", 1)
        if line.strip().startswith("#") and line.strip()[1] != " "
        else line
        for line in example_file().splitlines()
        if "headroom_bytes" not in line or "#headroom" in line
    ]
    path = tmp_path / "all.yaml"
    path.write_text("\n".join(lines), encoding="utf-8")
    config = load_config(environ={}, config_file=path)
    for key, declared in OPTIONS.items():
        if declared.default is not None and not declared.missing:
            assert config.named(key), key
            assert config.value(key) == declared.kind.parse(declared.default)


def test_the_docs_page_names_every_option_once() -> None:
    page = markdown_page()
    for declared in OPTIONS.values():
        assert page.count(f"`{declared.variable}`") == 1
        assert f"`{declared.flag} " in page


def test_values_in_force_show_value_and_source() -> None:
    config = load_config({"vram.headroom_bytes": "2G"}, environ={})
    rows = {declared.key: (value, source) for declared, value, source in values_in_force(config)}
    assert rows["vram.headroom_bytes"] == ("2G", "flag --vram-headroom-bytes")
    assert rows["model.lanes"] == ("4 on the CPU, 8 on a GPU", "default")


def test_user_folders_follow_the_xdg_rules() -> None:
    assert user_cache_folder({"HOME": "/h"}) == Path("/h/.cache/ignis")
    assert user_cache_folder({"HOME": "/h", "XDG_CACHE_HOME": "/x"}) == Path("/x/ignis")
    assert user_cache_folder({"HOME": "/h", "XDG_CACHE_HOME": "x"}) == Path("/h/.cache/ignis")
    assert user_config_folder({"HOME": "/h"}) == Path("/h/.config/ignis")
