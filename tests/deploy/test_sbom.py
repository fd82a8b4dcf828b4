"""The bill of materials of an image: what its package databases list, as CycloneDX."""

import json
from pathlib import Path

import pytest

from tools.sbom import bill

STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.41-12
Description: GNU C Library
 Shared libraries of many programs.

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0
"""


def files(rootfs: Path, *distributions: tuple[str, str]) -> Path:
    status = rootfs / "var" / "lib" / "dpkg" / "status"
    status.parent.mkdir(parents=True)
    status.write_text(STATUS)
    for name, version in distributions:
        folder = rootfs / f"opt/gpuwatch/lib/python3.13/site-packages/{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return rootfs


def test_packages_of_debian_and_of_python_are_listed(tmp_path: Path) -> None:
    made = json.loads(bill(files(tmp_path, ("gpuwatch_controller", "0.1.0"), ("PyYAML", "6.0.3"))))
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert made["metadata"]["component"]["version"] == "0.1.0"
    assert sorted(each["purl"] for each in made["components"]) == [
        "pkg:deb/debian/libc6@2.41-12?arch=amd64",
        "pkg:pypi/gpuwatch-controller@0.1.0",
        "pkg:pypi/pyyaml@6.0.3",
    ]


def test_what_is_no_image_of_gpuwatch_has_no_bill(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not the file system of a Debian image"):
        bill(tmp_path)
    with pytest.raises(ValueError, match="has no gpuwatch-controller"):
        bill(files(tmp_path, ("PyYAML", "6.0.3")))
