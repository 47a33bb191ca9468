"""The arithmetic of reductions, without a group: as many ranks as no test can have."""

import os
import pathlib
import shutil
import subprocess

import pytest
import torch
from torch.utils.cpp_extension import include_paths

PROGRAM = """
#include "reduction.hpp"
#include <cstdint>
#include <cstdio>

using c10::ScalarType;

template <class T> int average(ScalarType type, T sum, int ranks, T wanted) {
    T value = sum;
    rendez_torch::finish_reduction(&value, 1, type, rendez_torch::Reduction::average, ranks);
    if (value != wanted) {
        std::printf("%lld of %d ranks: %lld\\n", (long long)sum, ranks, (long long)value);
    }
    return value != wanted;
}

int main() {
    return average<int8_t>(ScalarType::Char, 100, 200, 0) + average<int8_t>(ScalarType::Char, -128, 128, -1) +
           average<int8_t>(ScalarType::Char, -7, 2, -3) + average<int16_t>(ScalarType::Short, 30000, 40000, 0) +
           average<uint64_t>(ScalarType::UInt64, UINT64_MAX - 1, 2, INT64_MAX) +
           average<uint8_t>(ScalarType::Byte, 200, 256, 0);
}
"""


def test_averages_of_small_integers_over_many_ranks(tmp_path):
    compiler = os.environ.get("CXX") or shutil.which("c++") or pytest.skip("there is no compiler")
    source = tmp_path / "averages.cpp"
    source.write_text(PROGRAM)
    own = pathlib.Path(__file__).parents[1] / "csrc"
    libraries = pathlib.Path(torch.__file__).parent / "lib"
    command = [compiler, "-std=c++20", "-O0", f"-I{own}", *(f"-I{path}" for path in include_paths())]
    command += [source, own / "reduction.cpp", "-o", tmp_path / "averages"]
    subprocess.run([*command, f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-ltorch_cpu", "-lc10"], check=True, timeout=180)
    done = subprocess.run([tmp_path / "averages"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
