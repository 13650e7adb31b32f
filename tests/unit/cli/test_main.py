"""The command line: what it says, where it says it, and with which status it ends."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from ignis._native import DeviceUnavailableError
from ignis.cli.main import COMMANDS, main
from ignis.config import OPTIONS, Config
from ignis.errors import ConfigError, EngineError, PlanError, PlanRefused


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))


@pytest.fixture(autouse=True)
def _no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_card() -> None:
        raise DeviceUnavailableError("no card in this test")

    monkeypatch.setattr("ignis.plan.devices.find_card", find_card)


@pytest.fixture
def fake_server(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """An `ignis.server.run` that notes its config, and raises what `error` holds."""
    noted: dict[str, object] = {}
    module = ModuleType("ignis.server.run")

    def serve(config: Config) -> int:
        noted["config"] = config
        if isinstance(error := noted.get("error"), BaseException):
            raise error
        return 0

    module.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ignis.server.run", module)
    return noted


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ignis: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_bare_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"    {command} " in text


@pytest.mark.parametrize("words", [["--help"], ["help"], ["help", "plan"], ["plan", "--help"]])
def test_help_ends_well(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):
        assert main(words) == 0
    assert "usage: ignis" in capsys.readouterr().out


def test_serve_help_explains_every_option_of_this_version(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = capsys.readouterr().out
    for declared in OPTIONS.values():
        assert (declared.flag in text) is not declared.missing


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["srve"], "did you mean serve"),
        (["help", "pln"], "did you mean plan"),
        (["serve", "--vram-headrom-bytes", "1G"], "did you mean --vram-headroom-bytes"),
        (["serve", "--port", "1"], "--port; the address is --server-bind HOST:PORT"),
        (["serve", "--max-model-len=1"], "; the longest sequence is --model-max-context TOKENS"),
        (["serve", "-c", "4096"], "-c; the longest sequence is --model-max-context TOKENS"),
        (["serve", "-m", "a.gguf"], "-m; the model is --model MODEL"),
        (["serve", "-ngl", "99"], "-ngl; the device, for the whole model, is --device auto|"),
        (["serve", "--vram-headroom-bytes", "1e9"], '--vram-headroom-bytes is "1e9"'),
        (["serve", "--vram-budget-bytes", "-1"], "--vram-budget-bytes is"),
        (["serve", "--vram-budget-bytes", "0"], "at least 1"),
        (
            ["serve", "--vram-headroom-bytes", "1G", "--vram-budget-bytes", "1G"],
            "--vram-headroom-bytes and --vram-budget-bytes exclude each other",
        ),
        (["serve", "--vram-allow-oversubscription"], "--vram-allow-oversubscription has a meaning"),
        (["serve", "--vram-pinned-expert-bytes", "2G"], "applies to Flash-Next"),
        (["serve", "a.gguf", "--model", "b.gguf"], "named twice"),
        (["serve", "a.gguf", "b.gguf"], "unexpected word b.gguf"),
        (["plan", "--server-bind", "1:1"], "an option of `ignis serve`"),
        (["plan", "--free", "-3"], "--free is"),
        (["plan", "--device", "rtx6090"], "unknown device"),
        (["plan", "--device", "cuda"], "no card in this test; to plan for a card that is not here"),
        (["serve", "--device", "cuda"], "no card in this test"),
        (["serve", "--config", "nosuch.yaml"], "nosuch.yaml"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], fake_server: dict[str, object]
) -> None:
    assert main(words) == 2
    assert says in one_line(capsys)
    assert not fake_server


@pytest.mark.parametrize("words", [["--retained-slots", "4"], ["--retained-slots=4"]])
def test_the_removed_flag_names_its_two_successors(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *words]) == 2
    line = one_line(capsys)
    assert "--reuse-retained-device" in line
    assert "--reuse-retained-host" in line


def test_a_missing_value_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--vram-headroom-bytes"])
    assert ended.value.code == 2
    assert "expected one argument" in one_line(capsys)


def test_a_model_that_is_nowhere_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "nowhere.gguf"]) == 1
    assert "neither a file or folder" in one_line(capsys)


def test_serve_hands_over_what_was_asked(tmp_path: Path, fake_server: dict[str, object]) -> None:
    words = ["--reuse-prompt=on"] if not OPTIONS["reuse.prompt"].missing else []
    assert main(["serve", str(tmp_path), "--model-lanes", "2", *words]) == 0
    config = fake_server["config"]
    assert isinstance(config, Config)
    assert config.model.path == str(tmp_path)
    assert config.model.lanes == 2


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("x"), 2),
        (PlanError("x"), 2),
        (EngineError("x"), 1),
        (FileNotFoundError(2, "No such file or directory", "f"), 1),
        (RuntimeError("boom"), 1),
    ],
)
def test_errors_end_in_one_line_and_their_status(
    tmp_path: Path,
    fake_server: dict[str, object],
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    status: int,
) -> None:
    fake_server["error"] = error
    assert main(["serve", str(tmp_path)]) == status
    assert "Traceback" not in one_line(capsys)


def test_a_traceback_is_shown_when_asked_for(
    tmp_path: Path,
    fake_server: dict[str, object],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_server["error"] = RuntimeError("boom")
    assert main(["serve", str(tmp_path), "--traceback"]) == 1
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("IGNIS_TRACEBACK", "1")
    assert main(["serve", str(tmp_path)]) == 1
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.delenv("IGNIS_TRACEBACK")
    (tmp_path / "ignis.config.yaml").write_text("traceback: on")
    assert main(["serve", str(tmp_path)]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_status_130(tmp_path: Path, fake_server: dict[str, object]) -> None:
    fake_server["error"] = KeyboardInterrupt()
    assert main(["serve", str(tmp_path)]) == 130


def test_a_refused_start_is_logged_and_status_3(
    tmp_path: Path, fake_server: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    fake_server["error"] = PlanRefused("too much", needed_bytes=3, budget_bytes=1)
    assert main(["serve", str(tmp_path), "--log-format", "json"]) == 3
    captured = capsys.readouterr()
    assert "ignis.runtime.vram_plan_refused" in captured.out
    assert "refused: too much" in captured.err


def test_config_print_shows_each_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IGNIS_SERVER_API_KEY", "hunter2")
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "ignis.config.yaml").write_text("model: {lanes: 3}")
    assert main(["config", "print", "--vram-headroom-bytes", "2G"]) == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "flag --vram-headroom-bytes" in rows["vram.headroom_bytes"]
    assert rows["model.lanes"].split() == ["model.lanes", "3", "file"]
    assert "ignis.config.yaml" in rows["configuration"]
    assert "variable IGNIS_SERVER_API_KEY" in rows["server.api_key"]
    assert "hunter2" not in text
    assert main(["config", "print", "--json"]) == 0
    assert "hunter2" not in capsys.readouterr().out


def test_config_generate_never_overwrites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "generate", "--output", "ignis.config.yaml"]) == 0
    assert main(["config", "print"]) == 0
    capsys.readouterr()
    assert main(["config", "generate", "--output", "ignis.config.yaml"]) == 2
    assert "is there already" in one_line(capsys)


@pytest.mark.parametrize(
    "words",
    [
        ["config"],
        ["config", "fields"],
        ["config", "fields", "--json"],
        ["config", "fields", "--markdown"],
        ["config", "generate"],
        ["models"],
        ["models", "list"],
    ],
)
def test_listings_end_well(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")
    assert main(words) == 0
    assert capsys.readouterr().out


def test_help_and_version_need_no_built_core() -> None:
    code = (
        "import sys; sys.modules['ignis._native'] = None\n"
        "from ignis.cli.main import main\n"
        "main([]); main(['config', 'fields']); main(['models', 'list'])\n"
        "sys.exit(main(['help', 'serve']))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    code = "import sys; from ignis.cli.main import main; sys.exit(main(['config', 'fields']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
