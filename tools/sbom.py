"""The bill of materials of an image: `python -m tools.sbom ROOTFS > sbom.cdx.json` writes CycloneDX.

ROOTFS is the image's unpacked file system. What is listed is what its package databases list: Debian's packages in
/var/lib/dpkg/status, Python's in the `*.dist-info` folders of gpuwatch's environment. What no database names has no
entry: the libraries inside Python's wheels (OpenBLAS, Arrow's own), and Python itself where it is no Debian package, as
in the public Python images.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from email import message_from_string
from importlib.metadata import distributions
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

ENVIRONMENT = "opt/gpuwatch"
_OURS = "gpuwatch-controller"


def debian_packages(status: str) -> Iterator[Component]:
    """The packages that dpkg's status file lists as installed."""
    for paragraph in status.split("\n\n"):
        fields = message_from_string(paragraph)
        if fields["Status"] == "install ok installed":
            qualifiers = {"arch": fields["Architecture"]}
            url = PackageURL("deb", "debian", fields["Package"], fields["Version"], qualifiers)
            yield _component(fields["Package"], fields["Version"], url)


def python_packages(environment: Path) -> Iterator[Component]:
    """The distributions that are installed in a virtual environment."""
    folders = [str(folder) for folder in environment.glob("lib/python3*/site-packages")]
    for each in distributions(path=folders):
        name = each.name.lower().replace("_", "-")
        yield _component(name, each.version, PackageURL("pypi", None, name, each.version))


def _component(name: str, version: str, url: PackageURL) -> Component:
    return Component(name=name, version=version, purl=url, bom_ref=str(url), type=ComponentType.LIBRARY)


def bill(rootfs: Path) -> str:
    """CycloneDX 1.6 of the image with these files. Raises ValueError where it has no gpuwatch, or no database of
    Debian's packages."""
    status = rootfs / "var" / "lib" / "dpkg" / "status"
    if not status.is_file():
        raise ValueError(f"{status} is missing: {rootfs} is not the file system of a Debian image")
    python = list(python_packages(rootfs / ENVIRONMENT))
    version = next((each.version for each in python if each.name == _OURS), None)
    if version is None:
        raise ValueError(f"{rootfs / ENVIRONMENT} has no {_OURS}: {rootfs} is not the file system of gpuwatch's image")
    return _written(version, [*python, *debian_packages(status.read_text(encoding="utf-8"))])


def _written(version: str, components: Iterable[Component]) -> str:
    image = Component(name="gpuwatch", version=version, type=ComponentType.CONTAINER, bom_ref=f"gpuwatch@{version}")
    found = Bom(components=components)
    found.metadata.component = image
    found.register_dependency(image, found.components)
    text = JsonV1Dot6(found).output_as_string(indent=2)
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong is not None:
        raise ValueError(f"the bill is no valid CycloneDX 1.6: {wrong}")
    return text


def main() -> int:
    parser = ArgumentParser(prog="python -m tools.sbom", description="The bill of materials of an image, as CycloneDX.")
    parser.add_argument("rootfs", type=Path, help="the image's unpacked file system")
    try:
        print(bill(parser.parse_args().rootfs))
    except ValueError as error:
        print(f"sbom: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
