"""Shared by the programs in this folder: packages from a folder of the source tree, and sections selected by name.

GPUPOOL_TEST_PACKAGES names the folder with the packages (scripts/install-dependencies puts them there). nvJitLink is
hidden from them: it links to machine code, which the software GPU cannot run; without it they pass PTX to the driver's
linker.
"""

import os
import site
import sys

SECTIONS = {}


def section(function):
    SECTIONS[function.__name__] = function
    return function


def main():
    if sys.argv[1:] == ["--list"]:
        print("\n".join(SECTIONS))
        return
    for name in sys.argv[1:] or SECTIONS:
        SECTIONS[name]()
        print(f"ok   {name}")


def hide_nvjitlink():
    from cuda import pathfinder

    load = pathfinder.load_nvidia_dynamic_lib

    def load_but_nvjitlink(name):
        if name == "nvJitLink":
            raise pathfinder.DynamicLibNotFoundError("hidden from this test")
        return load(name)

    pathfinder.load_nvidia_dynamic_lib = load_but_nvjitlink


# Its advice about small grids and host arrays is for production programs.
os.environ["NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS"] = "0"
os.environ["NUMBA_CUDA_WARN_ON_IMPLICIT_COPY"] = "0"
site.addsitedir(os.environ["GPUPOOL_TEST_PACKAGES"])
hide_nvjitlink()
