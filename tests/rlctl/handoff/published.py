"""Kubernetes' published OpenAPI, as far as a hand-off needs it: is a call, or an answer, what it says?

The fixture is made of two packages of PyPI that are generated from the document that Kubernetes publishes with a
release: the definitions of `kubernetes-validate`, and the operations of `kubernetes`, the official client. To make it
anew from the two wheels: `python -m tests.rlctl.handoff.published kubernetes_validate-*.whl kubernetes-*.whl`.
"""

import json
import re
import sys
import zipfile
from pathlib import Path

from jsonschema import Draft202012Validator

FIXTURE = Path(__file__).parents[2] / "fixtures/kubernetes/openapi.json"
NEEDED = {
    "list_namespaced_pod": None,
    "patch_namespaced_pod": "io.k8s.apimachinery.pkg.apis.meta.v1.Patch",
    "create_namespaced_pod_eviction": "io.k8s.api.policy.v1.Eviction",
}
"""Operations by the client's names, and the definitions of their bodies."""

META, CORE = "io.k8s.apimachinery.pkg.apis.meta.v1.", "io.k8s.api.core.v1."
BEGINNINGS = (f"{META}Status", f"{CORE}PodList", *filter(None, NEEDED.values()))
LEFT_OUT = {f"{CORE}PodSpec", f"{CORE}PodStatus"}
"""Hundreds of definitions of which no hand-off reads anything: any object will do."""


class Published:
    """What the document says."""

    def __init__(self, file=FIXTURE):
        self.document = json.loads(file.read_text())

    def check_call(self, call):
        """AssertionError where the API has no such call, or not with such parameters or such a body."""
        operation, given = self._operation(call.method, call.path)
        known = {one["name"]: one for one in operation["parameters"]}
        for name, value in {**given, **call.query}.items():
            assert name in known, f"{call.method} {call.path} has no parameter {name}"
            self._check(known[name]["schema"], value)
        assert not {name for name, one in known.items() if one.get("required")} - {*given, *call.query}
        if "requestBody" not in operation:
            assert call.body is None
            return
        kinds = operation["requestBody"]["content"]
        assert call.headers["Content-Type"] in kinds
        self._check(kinds[call.headers["Content-Type"]]["schema"], call.body)
        if call.method == "PATCH":  # published as any object; it is a part of what it changes
            self.check_object(f"{CORE}Pod", without_nulls(call.body), partly=True)

    def check_object(self, name, value, *, partly=False):
        """AssertionError where a value is no object of this definition; partly: one that lacks what is required."""
        self._check({"$ref": f"#/components/schemas/{name}"}, value, partly=partly)

    def _operation(self, method, path):
        for template, operations in self.document["paths"].items():
            found = re.fullmatch(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template), path)
            if found and method.lower() in operations:
                return operations[method.lower()], found.groupdict()
        raise AssertionError(f"the API has no {method} {path}")

    def _check(self, schema, value, *, partly=False):
        components = self.document["components"]
        checker = Draft202012Validator(schema | {"components": parts_of(components) if partly else components})
        wrong = [f"{error.json_path}: {error.message}" for error in checker.iter_errors(value)]
        assert not wrong, "; ".join(wrong)


def without_nulls(patch):
    """What a merge patch (RFC 7396) leaves there: null takes away."""
    if not isinstance(patch, dict):
        return patch
    return {key: without_nulls(value) for key, value in patch.items() if value is not None}


def parts_of(schema):
    """The same with nothing required."""
    if isinstance(schema, list):
        return [parts_of(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: parts_of(one) for key, one in schema.items() if not (key == "required" and isinstance(one, list))}


def pruned(definitions, client, sources):
    """The document with the few operations and the definitions that they lead to, without the prose.

    Args:
        definitions: JSON schemas by name.
        client: Source text of the generated client.
        sources: Names of the two packages, for `info`.
    """
    paths = {}
    for name, body in NEEDED.items():
        path, operation = operation_of(client, name, body)
        paths[path] = operation
    schemas, waiting = {}, list(BEGINNINGS)
    while waiting:
        name = waiting.pop()
        if name not in schemas:
            schemas[name] = {"type": "object"} if name in LEFT_OUT else definitions[name]
            waiting += references(schemas[name])
    release = re.search(r"version of the OpenAPI document: (\S+)", client)[1]
    info = {"title": "Kubernetes", "version": release, "x-source": sources, "x-left-out": sorted(LEFT_OUT)}
    whole = plain({"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}})
    return json.loads(REFERENCE.sub(r'"#/components/schemas/\1"', json.dumps(whole)))


def operation_of(client, name, body):
    """Path and operation of one function of the client."""
    text = client[client.index(f"def _{name}_serialize(") :]
    text = text[: text.index("_request_auth=_request_auth\n")]
    parameters = [
        {"name": one, "in": "path", "required": True, "schema": {"type": "string"}}
        for one in re.findall(r"_path_params\['(\w+)'\]", text)
    ]
    parameters += [
        {"name": one, "in": "query", "schema": {}} for one in re.findall(r"_query_params.append\(\('(\w+)'", text)
    ]
    kinds = re.search(r"select_header_content_type\(\s*\[([^\]]*)\]", text)
    kinds = re.findall(r"'([^']+)'", kinds[1]) if kinds else ["application/json"]
    operation = {"operationId": name, "parameters": parameters}
    if body:
        schema = {"$ref": f"#/components/schemas/{body}"}
        operation["requestBody"] = {"content": {kind: {"schema": schema} for kind in kinds}}
    method = re.search(r"method='(\w+)'", text)[1].lower()
    return re.search(r"resource_path='([^']+)'", text)[1], {method: operation}


REFERENCE = re.compile(r'"[^"#]*#/(?:\$defs/)?(io\.k8s\.[^"]+)"')


def references(value):
    return REFERENCE.findall(json.dumps(value))


def plain(value):
    """Without descriptions; a property of that name is an object, and stays."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {key: plain(one) for key, one in value.items() if not (key == "description" and isinstance(one, str))}


def member(wheel, name):
    """The last member of a wheel whose name ends so: of several releases the newest."""
    with zipfile.ZipFile(wheel) as archive:
        found = [one for one in archive.namelist() if one.endswith(name)]
        newest = max(found, key=lambda one: [int(number) for number in re.findall(r"\d+", one)])
        return archive.read(newest).decode()


if __name__ == "__main__":
    schemas, generated = sys.argv[1:]
    made = pruned(
        json.loads(member(schemas, "-local-strict/_definitions.json"))["$defs"],
        member(generated, "client/api/core_v1_api.py"),
        [Path(one).name.split("-py")[0] for one in (schemas, generated)],
    )
    FIXTURE.parent.mkdir(parents=True, exist_ok=True)
    FIXTURE.write_text(json.dumps(made, indent=1) + "\n")
