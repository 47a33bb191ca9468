"""Builds the extension of rendez.torch against the PyTorch that is installed."""

import os
import pathlib
import shutil

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

HERE = pathlib.Path(__file__).resolve().parent
OLDEST = (2, 9)

version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
if version < OLDEST:
    raise SystemExit(
        f"rendez-torch needs PyTorch {OLDEST[0]}.{OLDEST[1]} or newer, and {torch.__version__} is installed"
    )

# In the repository the headers of rendez lie beside this folder; an sdist carries a copy.
headers = HERE / "include"
if (HERE.parent / "capi" / "rendez.h").exists():
    headers.mkdir(exist_ok=True)
    for name in ("rendez.h", "rendez.hpp"):
        theirs, ours = HERE.parent / "capi" / name, headers / name
        # A copy that is the same keeps its time, so that nothing is compiled again.
        if not ours.exists() or ours.read_bytes() != theirs.read_bytes():
            shutil.copyfile(theirs, ours)

(HERE / "rendez_torch" / "_built_for.py").write_text(
    f'"""Written by setup.py."""\n\nBUILT_FOR = "{torch.__version__}"\n'
)

sources = sorted(str(path.relative_to(HERE)) for path in (HERE / "csrc").glob("*.cpp"))
flags = ["-std=c++20", os.environ.get("RENDEZ_TORCH_OPTIMIZE", "-O3"), "-fvisibility=hidden", "-g0", "-Wall", "-Wextra"]
flags += ["-Wno-unused-parameter", "-Wno-sign-compare"]

setup(
    packages=["rendez_torch"],
    ext_modules=[
        CppExtension(
            "rendez_torch._native",
            sources,
            include_dirs=[str(headers)],
            extra_compile_args=flags,
            # The C++ library that torch uses. Compilers that link their own into each extension give it a second one,
            # whose streams know none of the locales of the first.
            extra_link_args=["-l:libstdc++.so.6"],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
