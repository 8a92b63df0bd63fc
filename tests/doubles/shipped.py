"""Names of the files that ship with rlctl."""

from rlctl.envs.yaml_edge import configs_folder

SAFETY_PROFILES = tuple(sorted(file.stem for file in configs_folder("safety").glob("*.yaml")))
HOST_PROFILES = tuple(sorted(file.stem for file in configs_folder("plants").glob("*.yaml")))
