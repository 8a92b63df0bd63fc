"""YAML that stands in a test rather than in a file."""

from rlctl.envs.yaml_edge import parse_yaml, validate


def load_text(model, text, name):
    """Check it against a model; `name` stands where a file's path would."""
    data, lines = parse_yaml(text, name)
    return validate(model, data, name, lines)
