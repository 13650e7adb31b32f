"""From flags, variables, a file and a profile to one frozen `Config`, each value with its source.

Precedence: flag, variable, file, profile, default. What an operator named (flag, variable or file)
is told apart from what a profile or the table gave, because only the latter may be adapted.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ignis.config.files import discover, read_file
from ignis.config.folders import user_cache_folder, user_config_folder
from ignis.config.option import Option
from ignis.config.options import (
    GROUPS,
    OPTIONS,
    PROFILES,
    REMOVED,
    CacheOptions,
    CpuOptions,
    CudaOptions,
    KvDiskOptions,
    LogOptions,
    ModelOptions,
    ReuseOptions,
    RootOptions,
    ServerOptions,
    VramOptions,
)
from ignis.config.other_names import our_name
from ignis.errors import ConfigError

# Variables a cluster sets for a service that happens to be called ignis-<group>.
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP)(_\w+)?)")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value came from; `place` is the flag, variable, file and key, or profile."""

    kind: Literal["flag", "variable", "file", "profile", "default"]
    place: str = ""

    @property
    def named(self) -> bool:
        """Whether an operator chose the value; such a value never adapts."""
        return self.kind in {"flag", "variable", "file"}

    def __str__(self) -> str:
        return f"{self.kind} {self.place}" if self.place else self.kind


DEFAULT = Source("default")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(RootOptions):
    """What was asked, as `config.vram.headroom_bytes`; what it means is the plan's to say."""

    model: ModelOptions = field(default_factory=ModelOptions)
    vram: VramOptions = field(default_factory=VramOptions)
    cpu: CpuOptions = field(default_factory=CpuOptions)
    cuda: CudaOptions = field(default_factory=CudaOptions)
    server: ServerOptions = field(default_factory=ServerOptions)
    reuse: ReuseOptions = field(default_factory=ReuseOptions)
    kv_disk: KvDiskOptions = field(default_factory=KvDiskOptions)
    log: LogOptions = field(default_factory=LogOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    sources: Mapping[str, Source] = field(default_factory=dict)
    file: Path | None = None

    def value(self, key: str) -> object:
        """The value of an option by its key, `vram.headroom_bytes`. Raises KeyError."""
        declared = OPTIONS[key]
        owner: object = getattr(self, declared.group) if declared.group else self
        value: object = getattr(owner, declared.name)
        return value

    def source(self, key: str) -> Source:
        """Where the value of an option came from."""
        return self.sources.get(key, DEFAULT)

    def named(self, key: str) -> bool:
        """Whether an operator set the option by flag, variable or file."""
        return self.source(key).named

    @property
    def cache_folder(self) -> Path:
        """The folder for fetched models."""
        return self.cache.dir or user_cache_folder()

    @property
    def kv_disk_folder(self) -> Path:
        """The folder for KV-disk's file."""
        return self.kv_disk.path or self.cache_folder / "kv"


@dataclass(frozen=True, slots=True)
class _Setting:
    value: object
    source: Source


def load_config(
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    config_file: Path | None = None,
    folder: Path | None = None,
    user_folder: Path | None = None,
) -> Config:
    """Resolve every option.

    `flags` maps option keys to what the command line gave (text), and wins over all else.
    Without `config_file` a file is looked for in `folder` (the current one), then in
    `user_folder` (`~/.config/ignis`). Raises ConfigError naming the source of what is wrong.
    """
    environ = os.environ if environ is None else environ
    path = config_file or discover(
        (folder or Path.cwd(), user_folder or user_config_folder(environ))
    )
    file_values, file_profiles = read_file(path) if path else ({}, {})

    named = _from_file(path, file_values) if path else {}
    named |= _from_environ(environ)
    named |= _from_flags(flags or {})
    _refuse_what_is_missing(named)

    settings = _from_profile(named.get("profile"), path, file_profiles)
    _refuse_contradictions(named, settings)
    settings |= named

    config = _build(settings, path)
    _check(config)
    return config


def unknown_name(name: str, known: list[str]) -> str:
    """` (did you mean X?)` for the nearest of the known names, or nothing."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""


def removed_name(key: str) -> str | None:
    """What to say to someone who uses a name of another version, else None."""
    return REMOVED.get(key)


def _from_file(path: Path, values: Mapping[str, object]) -> dict[str, _Setting]:
    return {
        key: _parsed(_declared(key, str(path)), raw, Source("file", f"{path}: {key}"))
        for key, raw in values.items()
    }


def _declared(key: str, place: str) -> Option:
    if (removed := removed_name(key)) is not None:
        raise ConfigError(f"{place}: {key} {removed}")
    if key not in OPTIONS:
        word = key.rpartition(".")[2]
        known = our_name(word, lambda ours: ours.key) or unknown_name(key, list(OPTIONS))
        raise ConfigError(f"{place}: unknown option {key}{known}")
    return OPTIONS[key]


def _from_environ(environ: Mapping[str, str]) -> dict[str, _Setting]:
    by_variable = {declared.variable: declared for declared in OPTIONS.values()}
    removed = {"IGNIS_" + key.replace(".", "_").upper(): text for key, text in REMOVED.items()}
    starts = tuple(f"IGNIS_{group.upper()}_" for group in GROUPS if group)
    settings: dict[str, _Setting] = {}
    for variable, raw in environ.items():
        if not variable.startswith("IGNIS_") or not raw.strip():
            continue  # an empty variable is one that was not set
        if variable in by_variable:
            declared = by_variable[variable]
            settings[declared.key] = _parsed(declared, raw, Source("variable", variable))
        elif variable in removed:
            raise ConfigError(f"{variable} {removed[variable]}")
        elif variable.startswith(starts) and not _SERVICE_LINK.fullmatch(variable):
            word = next(variable[len(start) :] for start in starts if variable.startswith(start))
            known = our_name(word, lambda ours: ours.variable)
            known = known or unknown_name(variable, list(by_variable))
            raise ConfigError(f"unknown variable {variable}{known}")
    return settings


def _from_flags(flags: Mapping[str, object]) -> dict[str, _Setting]:
    settings = {}
    for key, raw in flags.items():
        declared = _declared(key, "command line")
        settings[key] = _parsed(declared, raw, Source("flag", declared.flag_alias or declared.flag))
    return settings


def _from_profile(
    asked: _Setting | None, path: Path | None, file_profiles: Mapping[str, Mapping[str, object]]
) -> dict[str, _Setting]:
    if asked is None:
        return {}
    name = str(asked.value)
    profiles: dict[str, Mapping[str, object]] = {**PROFILES, **file_profiles}
    if name not in profiles:
        known = ", ".join(sorted(profiles))
        raise ConfigError(f"{asked.source}: there is no profile {name}; there are {known}")
    place = f"{path}: profiles.{name}" if name in file_profiles else f"profile {name}"
    settings = {}
    for key, raw in profiles[name].items():
        declared = _declared(key, place)
        if key == "profile":
            raise ConfigError(f"{place}: a profile cannot name a profile")
        if not declared.missing:
            value = _parsed(declared, raw, Source("profile", f"{place}: {key}")).value
            settings[key] = _Setting(value, Source("profile", name))
    return settings


def _parsed(declared: Option, raw: object, source: Source) -> _Setting:
    try:
        return _Setting(declared.kind.parse(raw), source)
    except ValueError as error:
        text = "was not accepted" if declared.secret else str(error)
        raise ConfigError(f"{source.place or source.kind} {text}") from None


def _refuse_what_is_missing(named: Mapping[str, _Setting]) -> None:
    for key, setting in named.items():
        declared = OPTIONS[key]
        if declared.missing:
            raise ConfigError(
                f"{setting.source.place} applies to {declared.applies_to}; nothing in this "
                "version takes it"
            )


def _refuse_contradictions(named: Mapping[str, _Setting], profile: dict[str, _Setting]) -> None:
    """Budget and headroom exclude each other; a profile's value gives way to an operator's."""
    headroom, budget = named.get("vram.headroom_bytes"), named.get("vram.budget_bytes")
    if headroom and budget:
        raise ConfigError(
            f"{headroom.source.place} and {budget.source.place} exclude each other: the first "
            "derives the budget from free memory, the second is the budget"
        )
    if headroom:
        profile.pop("vram.budget_bytes", None)
    if budget or "vram.budget_bytes" in profile:
        profile.pop("vram.headroom_bytes", None)
    has_budget = budget is not None or "vram.budget_bytes" in profile
    if has_budget:
        return
    profile.pop("vram.allow_oversubscription", None)
    allowed = named.get("vram.allow_oversubscription")
    if allowed and allowed.value:
        raise ConfigError(
            f"{allowed.source.place} has a meaning only with vram.budget_bytes, the budget that "
            "may be more than is free"
        )


def _build(settings: Mapping[str, _Setting], path: Path | None) -> Config:
    values: dict[str, dict[str, object]] = {group: {} for group in GROUPS}
    for key, setting in settings.items():
        declared = OPTIONS[key]
        values[declared.group][declared.name] = setting.value
    groups = {
        group: options_class(**values[group]) for group, options_class in GROUPS.items() if group
    }
    sources = {key: setting.source for key, setting in settings.items()}
    everything: dict[str, object] = {**values[""], **groups, "sources": sources, "file": path}
    return Config(**everything)  # type: ignore[arg-type]


def _check(config: Config) -> None:
    ttl = config.source("reuse.retained_interactive_ttl")
    if ttl.named and not config.reuse.prompt:
        raise ConfigError(
            f"{ttl.place} needs reuse.prompt on, which is off ({config.source('reuse.prompt')}): "
            "without it there are no checkpoints to rank"
        )
    bind = config.server.bind
    if not bind.is_loopback and config.server.api_key is None:
        place = config.source("server.bind").place or "server.bind"
        raise ConfigError(
            f"{place}: {bind} can be reached from other machines; set server.api_key "
            "(IGNIS_SERVER_API_KEY) or listen on 127.0.0.1"
        )
