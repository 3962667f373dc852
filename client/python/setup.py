"""Generates memferry/v1/*_pb2.py from the contract when the package is built.

The contract lies in proto/ of the repository; a source distribution carries a copy of it."""
import pathlib
import shutil

import setuptools
from setuptools.command import build_py, sdist

HERE = pathlib.Path(__file__).resolve().parent
CONTRACT = "memferry/v1"


def proto_folder():
    for folder in (HERE / "proto", HERE.parent.parent / "proto"):
        if (folder / CONTRACT).is_dir():
            return folder
    raise SystemExit(f"memferry: no {CONTRACT}/*.proto in {HERE}/proto or {HERE}/../../proto; "
                     "install from a checkout of the repository or from an sdist")


def generate(out):
    from grpc_tools import protoc  # a build requirement, not there for `setup.py --version`
    proto = proto_folder()
    files = sorted(str(path.relative_to(proto)) for path in (proto / CONTRACT).glob("*.proto"))
    out.mkdir(parents=True, exist_ok=True)
    if protoc.main(["protoc", f"-I{proto}", f"--python_out={out}", f"--pyi_out={out}", *files]):
        raise SystemExit(f"memferry: protoc failed on {proto}")
    (out / CONTRACT / "__init__.py").write_text('"""Messages of the contract, generated."""\n')


class BuildPy(build_py.build_py):
    def run(self):
        super().run()
        generate(HERE / "src" if self.editable_mode else pathlib.Path(self.build_lib))


class Sdist(sdist.sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        shutil.copytree(proto_folder() / CONTRACT, pathlib.Path(base_dir) / "proto" / CONTRACT,
                        dirs_exist_ok=True)


setuptools.setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
