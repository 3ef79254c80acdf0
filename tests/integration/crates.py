"""The validator of RO-Crates, without a network.

It reads the JSON-LD contexts that a crate names from the web. Here it gets a short one of the terms
that a crate of this workflow may use: a term that is not among them is found.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
from rocrate_validator import services
from rocrate_validator.models import Severity
from rocrate_validator.utils.http import HttpRequester

SCHEMA = """
CreativeWork SoftwareSourceCode SoftwareApplication ComputerLanguage Dataset PropertyValue HowTo
HowToStep CreateAction ControlAction OrganizeAction about actionStatus additionalProperty
additionalType alternateName contentSize datePublished description encodingFormat endTime
exampleOfWork hasPart identifier instrument license mainEntity mentions name object position
programmingLanguage result
softwareVersion startTime step url value version workExample
""".split()
TERMS = {term: f"http://schema.org/{term}" for term in SCHEMA} | {
    "File": "http://schema.org/MediaObject",
    "conformsTo": "http://purl.org/dc/terms/conformsTo",
    "ComputationalWorkflow": "https://bioschemas.org/ComputationalWorkflow",
    "FormalParameter": "https://bioschemas.org/FormalParameter",
    "input": "https://bioschemas.org/ComputationalWorkflow#input",
    "output": "https://bioschemas.org/ComputationalWorkflow#output",
    "sha256": "https://w3id.org/ro/terms/workflow-run#sha256",
}
PROFILES = ("workflow-run-crate", "provenance-run-crate")


def context(*_args, **_kwargs):
    content = {"@context": TERMS}
    headers = {"Content-Type": "application/ld+json"}
    return SimpleNamespace(status_code=200, headers=headers, json=lambda: content)


def problems(folder: Path, profiles: tuple[str, ...] = PROFILES) -> list[str]:
    """What the validator finds wrong with the crate in a folder."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HttpRequester, "get", context, raising=False)
        for profile in profiles:
            result = services.validate(
                {
                    "rocrate_uri": str(folder),
                    "profile_identifier": profile,
                    "requirement_severity": Severity.REQUIRED,
                    "no_cache": True,
                }
            )
            found += [
                f"{profile}: {issue.check.identifier}: {issue.message}"
                for issue in result.get_issues()
            ]
    return found
