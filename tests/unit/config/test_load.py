"""Precedence, sources, and every way a configuration is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ignis.config import OPTIONS, Config, load_config
from ignis.config.options import GROUPS
from ignis.config.other_names import OTHER_NAMES, our_name
from ignis.errors import ConfigError

Load = Callable[..., Config]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """`load(flags, environ, file)` in a folder of its own; `file` is YAML text."""

    def load(
        flags: dict[str, object] | None = None,
        environ: dict[str, str] | None = None,
        file: str | None = None,
        name: str = "ignis.config.yaml",
    ) -> Config:
        here, user = tmp_path / "here", tmp_path / "user"
        here.mkdir(exist_ok=True)
        (here / name).unlink(missing_ok=True)
        if file is not None:
            (here / name).write_text(file, encoding="utf-8")
        return load_config(flags, environ=environ or {}, folder=here, user_folder=user)

    return load


def test_without_anything_every_value_is_the_default(load: Load) -> None:
    config = load()
    assert config.vram.headroom_bytes == 1536 << 20
    assert config.server.bind.port == 8000
    assert config.vram.adapt_spare_tokens == 65536
    assert {str(config.source(key)) for key in OPTIONS} == {"default"}


def test_flag_beats_variable_beats_file_beats_profile(load: Load) -> None:
    file = (
        "profile: mine\nmodel: {lanes: 3}\nprofiles: {mine: {model: {lanes: 2, max_context: 4K}}}"
    )
    variable = {"IGNIS_MODEL_LANES": "4"}
    flags = {"model.lanes": "5"}
    for given, lanes, source in [
        ((flags, variable, file), 5, "flag --model-lanes"),
        (({}, variable, file), 4, "variable IGNIS_MODEL_LANES"),
        (({}, {}, file), 3, "file"),
    ]:
        config = load(*given)
        assert config.model.lanes == lanes
        assert str(config.source("model.lanes")).startswith(source)
        assert config.named("model.lanes")
        assert config.model.max_context == 4096
        assert str(config.source("model.max_context")) == "profile mine"
        assert not config.named("model.max_context")


def test_names_follow_from_the_declaration() -> None:
    declared = OPTIONS["vram.headroom_bytes"]
    assert declared.flag == "--vram-headroom-bytes"
    assert declared.variable == "IGNIS_VRAM_HEADROOM_BYTES"
    assert len({one.flag for one in OPTIONS.values()}) == len(OPTIONS)
    assert len({one.variable for one in OPTIONS.values()}) == len(OPTIONS)
    assert all(one.help.endswith(".") for one in OPTIONS.values())


def test_every_group_of_the_table_is_an_attribute_of_the_config(load: Load) -> None:
    config = load()
    for key in OPTIONS:
        config.value(key)
    assert set(GROUPS) - {""} <= set(Config.__dataclass_fields__)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("flags", "flags"),
        ("flags", "variable"),
        ("flags", "file"),
        ("variable", "variable"),
        ("variable", "file"),
        ("file", "file"),
        ("file", "flags"),
    ],
)
def test_headroom_and_budget_exclude_each_other_from_any_mix(
    load: Load, first: str, second: str
) -> None:
    where: dict[str, dict[str, str]] = {"flags": {}, "variable": {}, "file": {}}
    shown = []
    for place, key in ((first, "vram.headroom_bytes"), (second, "vram.budget_bytes")):
        where[place][key if place != "variable" else OPTIONS[key].variable] = "1G"
        shown.append(
            {"flags": OPTIONS[key].flag, "variable": OPTIONS[key].variable}.get(place, key)
        )
    file = "".join(f"{key}: {value}\n" for key, value in where["file"].items()) or None
    with pytest.raises(ConfigError) as error:
        load(where["flags"], where["variable"], file)
    assert all(name in str(error.value) for name in shown)


def test_an_operators_headroom_beats_a_profiles_budget_and_the_reverse(load: Load) -> None:
    file = "profiles: {b: {vram.budget_bytes: 1G}, h: {vram.headroom_bytes: 1G}}"
    config = load({"profile": "b", "vram.headroom_bytes": "2G"}, {}, file)
    assert (config.vram.budget_bytes, config.vram.headroom_bytes) == (None, 2 << 30)
    config = load({"profile": "h", "vram.budget_bytes": "3G"}, {}, file)
    assert config.vram.budget_bytes == 3 << 30
    assert load({"profile": "b"}, {}, file).vram.budget_bytes == 1 << 30


def test_oversubscription_needs_an_explicit_budget(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"--vram-allow-oversubscription.*vram\.budget_bytes"):
        load({"vram.allow_oversubscription": "on"})
    assert not load({"vram.allow_oversubscription": "off"}).vram.allow_oversubscription
    assert load(
        {"vram.allow_oversubscription": "on"}, {"IGNIS_VRAM_BUDGET_BYTES": "1G"}
    ).vram.allow_oversubscription


def test_a_time_to_rank_checkpoints_needs_prompt_reuse() -> None:
    key, reuse = "reuse.retained_interactive_ttl", "reuse.prompt"
    assert load_config({key: "10"}, environ={}).reuse.retained_interactive_ttl == 10
    assert load_config({reuse: "off"}, environ={}).reuse.retained_interactive_ttl == 300
    with pytest.raises(ConfigError) as error:
        load_config({key: "10"}, environ={"IGNIS_REUSE_PROMPT": "off"})
    assert "--reuse-retained-interactive-ttl needs reuse.prompt on" in str(error.value)
    assert "variable IGNIS_REUSE_PROMPT" in str(error.value)


def test_kv_disk_lies_in_the_cache_folder_unless_it_is_named() -> None:
    config = load_config({"cache.dir": "/c"}, environ={})
    assert config.kv_disk_folder == Path("/c/kv")
    named = load_config({"cache.dir": "/c", "kv_disk.path": "/d"}, environ={})
    assert named.kv_disk_folder == Path("/d")
    assert (config.kv_disk.bytes, config.kv_disk.margin_bytes) == (0, 10 << 30)


@pytest.mark.parametrize("key", [key for key, one in OPTIONS.items() if one.missing])
def test_what_this_version_lacks_is_refused_when_named(load: Load, key: str) -> None:
    with pytest.raises(ConfigError, match="applies to"):
        load({key: OPTIONS[key].default or "1"})


def test_what_this_version_lacks_is_passed_over_in_a_profile(load: Load) -> None:
    config = load({"profile": "rtx5090"})
    assert config.vram.pinned_expert_bytes == 0
    assert config.model.lanes == 8


def test_unknown_names_are_refused_with_the_nearest(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"did you mean vram\.headroom_bytes"):
        load(file="vram: {headrom_bytes: 1G}")
    with pytest.raises(ConfigError, match="did you mean IGNIS_VRAM_HEADROOM_BYTES"):
        load(environ={"IGNIS_VRAM_HEADROM_BYTES": "1G"})
    with pytest.raises(ConfigError, match="there is no profile rtx5091"):
        load({"profile": "rtx5091"})


def test_a_name_of_another_server_is_answered_with_ours(load: Load) -> None:
    for file in ("port: 1", "server: {port: 1}", "vllm: {port: 1}"):
        with pytest.raises(ConfigError, match=r"port; the address is server\.bind$"):
            load(file=file)
    with pytest.raises(ConfigError, match=r"; how many run at a time is IGNIS_MODEL_LANES$"):
        load(environ={"IGNIS_MODEL_MAX_NUM_SEQS": "8"})


def test_names_of_other_servers_lead_to_options_and_are_none() -> None:
    flags = {flag for one in OPTIONS.values() for flag in (one.flag, one.flag_alias)}
    for name, (key, _) in OTHER_NAMES.items():
        assert not OPTIONS[key].missing
        assert "--" + name.replace("_", "-") not in flags
        assert our_name(name, lambda declared: declared.key).endswith(f" is {key}")


@pytest.mark.parametrize("way", ["flag", "variable", "file"])
def test_retained_slots_names_its_two_successors(load: Load, way: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(
            {"retained_slots": "4"} if way == "flag" else {},
            {"IGNIS_RETAINED_SLOTS": "4"} if way == "variable" else {},
            "retained_slots: 4" if way == "file" else None,
        )
    assert "reuse.retained_device" in str(error.value)
    assert "reuse.retained_host" in str(error.value)


def test_a_wrong_value_names_its_source(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"--vram-budget-bytes is 0; .*at least 1"):
        load({"vram.budget_bytes": "0"})
    with pytest.raises(ConfigError, match="IGNIS_VRAM_BUDGET_BYTES"):
        load(environ={"IGNIS_VRAM_BUDGET_BYTES": "1e9"})
    with pytest.raises(ConfigError, match=r"ignis\.config\.yaml: vram\.budget_bytes"):
        load(file="vram: {budget_bytes: -1}")


def test_a_secret_is_never_shown(load: Load) -> None:
    config = load({"server.api_key": "hunter2"})
    assert "hunter2" not in repr(config)
    assert OPTIONS["server.api_key"].show(config.server.api_key) == "(set)"
    with pytest.raises(ConfigError) as error:
        load({"server.api_key": "hunter2\0"})
    assert "hunter2" not in str(error.value)


def test_listening_beyond_this_machine_needs_a_key(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"--server-bind: 0\.0\.0\.0:80 .*server\.api_key"):
        load({"server.bind": "0.0.0.0:80"})
    assert load({"server.bind": "0.0.0.0:80", "server.api_key": "k"}).server.api_key == "k"


def test_an_empty_variable_is_not_set_and_service_links_are_not_ours(load: Load) -> None:
    config = load(
        environ={
            "IGNIS_VRAM_BUDGET_BYTES": "",
            "IGNIS_SERVER_SERVICE_HOST": "10.0.0.1",
            "IGNIS_SERVER_PORT": "tcp://10.0.0.1:80",
            "IGNIS_SERVER_PORT_80_TCP_ADDR": "10.0.0.1",
            "IGNIS_ELSEWHERE": "x",
        }
    )
    assert config.vram.budget_bytes is None


def test_the_nearest_file_wins_and_two_in_one_folder_are_refused(tmp_path: Path) -> None:
    here, user = tmp_path / "here", tmp_path / "user"
    here.mkdir()
    user.mkdir()
    (user / "ignis.config.json").write_text('{"model": {"lanes": 2}}')
    assert load_config(environ={}, folder=here, user_folder=user).model.lanes == 2
    (here / "ignis.config.yaml").write_text("model.lanes: 3")
    config = load_config(environ={}, folder=here, user_folder=user)
    assert config.model.lanes == 3
    assert config.file == here / "ignis.config.yaml"
    (here / "ignis.config.json").write_text("{}")
    with pytest.raises(ConfigError, match="keep one"):
        load_config(environ={}, folder=here, user_folder=user)
    named = user / "ignis.config.json"
    assert load_config(environ={}, config_file=named, folder=here).model.lanes == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model: {lanes: 1}\nmodel: {lanes: 2}", "twice"),
        ("model: {lanes: 1}\nmodel.lanes: 2", "twice"),
        ("[1, 2]", "a list"),
        ("7", "single value"),
        ("model: {lanes: [1]}", "not a list"),
        ("1: 2", "not text"),
        ("a: &x {b: 1}\nc: *x", "aliases"),
        ("model: {lanes: 1", "line 1"),
        ("profiles: 3", "profiles"),
        ("profiles: {a: {profile: b}}\nprofile: a", "cannot name a profile"),
        ("!!python/object/apply:os.system [id]", "constructor"),
        ("a: " * 5000 + "1", "."),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name(load: Load, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        load(file=text)
    assert "ignis.config.yaml" in str(error.value)


@pytest.mark.parametrize(
    "text", ["{", '{"a": 1, "a": 2}', "[" * 100_000, '{"model": {"lanes": NaN}}', '{"model": 1}']
)
def test_json_that_is_wrong_is_refused_by_name(load: Load, text: str) -> None:
    with pytest.raises(ConfigError, match=r"ignis\.config\.json"):
        load(file=text, name="ignis.config.json")


def test_bytes_that_are_not_text_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(environ={}, config_file=path)
    with pytest.raises(ConfigError, match=r"nosuch\.yaml"):
        load_config(environ={}, config_file=tmp_path / "nosuch.yaml")
    path.write_bytes(b"#" * (2 << 20))
    with pytest.raises(ConfigError, match="larger"):
        load_config(environ={}, config_file=path)


@pytest.mark.parametrize("text", ["", "# nothing\n", "model:\n", "model: {lanes: }\n"])
def test_a_file_without_values_changes_nothing(load: Load, text: str) -> None:
    assert load(file=text).model.lanes is None
