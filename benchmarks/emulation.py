"""An emulated network between a program and gpupoold on one machine, for the scripts that measure over one."""

import argparse
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Network:
    rtt: str
    rate: str

    @staticmethod
    def parse(text):
        rtt, comma, rate = text.partition(",")
        if not (comma and rtt and rate):
            raise argparse.ArgumentTypeError(f"'{text}' is not RTT,RATE, as 100us,25gbit")
        return Network(rtt, rate)

    def text(self):
        return f"{self.rtt}, {self.rate}/s"


def emulation(folder, network):
    """The environment that sends a process's TCP connections through that network (benchmarks/network/preload.cpp)."""
    library = folder / "libgpupool_network.so"
    if not library.is_file():
        sys.exit(f"{library} is not there: build the target gpupool_network")
    # Shared memory would bypass the network.
    return {
        "LD_PRELOAD": str(library),
        "GPUPOOL_EMULATED_NETWORK": f"{network.rtt},{network.rate}",
        "GPUPOOL_TRANSPORT": "tcp",
    }
