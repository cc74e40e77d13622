"""Puts the Lua scripts of the repository into the package. A wheel that is built from an sdist has them already."""

from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Scripts(BuildHookInterface):
    def initialize(self, version, build_data):
        package = "src/counterfoil" if self.target_name == "sdist" else "counterfoil"
        if not Path(self.root, "src/counterfoil/lua").is_dir():
            scripts = Path(self.root).parents[1] / "lua" / "v1"
            build_data["force_include"][str(scripts)] = f"{package}/lua/v1"
