"""Lists what an image of the node is made of, as an SBOM in the format CycloneDX.

    python tools/sbom.py /var/lib/dpkg/status > sbom.cdx.json

The list has the Python that runs this script, the distributions that this Python can import, and the Debian packages
of the file. The image's build calls it (deploy/container/Containerfile).
"""

from __future__ import annotations

import json
import platform
import re
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any


def component(kind: str, name: str, version: str, qualifiers: str = "") -> dict[str, str]:
    """Returns one entry of the list. kind: the beginning of its package URL, such as "pypi"."""
    return {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:{kind}/{name}@{version.replace('+', '%2B').replace(':', '%3A')}{qualifiers}",
    }


def sbom(status: str) -> dict[str, Any]:
    """Returns the whole document. status: the text of /var/lib/dpkg/status."""
    components = [component("generic", "python", platform.python_version())]
    python = {re.sub(r"[-_.]+", "-", each.name).lower(): each.version for each in distributions()}
    components += [component("pypi", name, python[name]) for name in sorted(python)]
    for entry in status.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Architecture): (.*)$", entry, re.MULTILINE))
        if fields:
            name, version = fields["Package"], fields["Version"]
            components.append(component("deb/debian", name, version, f"?arch={fields['Architecture']}"))
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}


if __name__ == "__main__":
    print(json.dumps(sbom(Path(sys.argv[1]).read_text(encoding="utf-8")), indent=1))
