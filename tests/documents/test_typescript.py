"""The TypeScript client has what the service has."""

import json

from bursar import __version__
from tests.documents.typescript import FOLDER, files


def test_types_and_resources_are_those_of_the_document():
    """Goal: a route that is added fails here until `make reference` was run."""
    written = {path.name: path.read_text("utf-8") for path in FOLDER.iterdir()}
    assert written == files(), "run: make reference"


def test_the_package_has_the_version_of_the_service():
    package = json.loads((FOLDER.parents[1] / "package.json").read_text("utf-8"))
    lock = json.loads((FOLDER.parents[1] / "package-lock.json").read_text("utf-8"))
    assert package["version"] == lock["version"] == __version__
