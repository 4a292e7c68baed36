"""Every Python process of a suite imports this at its start, also those that tests start.

GPUPOOL_TEST_PACKAGES names the folder with the packages. GPUPOOL_SUITE_HIDE_NVJITLINK says that nvJitLink must not be
found: it makes machine code, which the software GPU cannot run.
"""

import os
import site
import warnings


def hide_nvjitlink():
    from cuda import pathfinder

    load = pathfinder.load_nvidia_dynamic_lib

    def load_but_nvjitlink(name):
        if name == "nvJitLink":
            raise pathfinder.DynamicLibNotFoundError("hidden from these tests")
        return load(name)

    pathfinder.load_nvidia_dynamic_lib = load_but_nvjitlink
    # cuda.core says so when it first links. A test that counts warnings would count this one too.
    warnings.filterwarnings("ignore", "libnvJitLink.* is not available", RuntimeWarning)


if "GPUPOOL_TEST_PACKAGES" in os.environ:
    site.addsitedir(os.environ["GPUPOOL_TEST_PACKAGES"])
    if os.environ.get("GPUPOOL_SUITE_HIDE_NVJITLINK"):
        hide_nvjitlink()
