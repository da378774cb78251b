"""The licences of what an installation brings along, as the packages themselves say. `python -m` lists them."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, metadata

from tests.support.source import ROOT


def read_licences() -> dict[str, str]:
    """By `NAME VERSION`; without those that another platform needs."""
    found = {}
    for name in re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE):
        try:
            package = metadata(name)
        except PackageNotFoundError:
            continue
        classifiers = [one for one in package.get_all("Classifier") or [] if one.startswith("License :: ")]
        said = [package.get("License-Expression"), *(one.split(" :: ")[-1] for one in classifiers)]
        said.append((package.get("License") or "").partition("\n")[0])
        found[f"{name} {package['Version']}"] = next((text for text in said if text), "")
    return found


if __name__ == "__main__":
    for package, licence in read_licences().items():
        print(f"{package:32}{licence}")
