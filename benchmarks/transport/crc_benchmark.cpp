// The checksum, which both ends compute over every payload byte.
#include <benchmark/benchmark.h>

#include <vector>

#include "protocol/wire/frame.h"

namespace gpupool::benchmarks {
namespace {

void checksum(benchmark::State& state, std::uint32_t (*crc)(std::span<const std::byte>, std::uint32_t)) {
    const std::vector<std::byte> data(static_cast<std::size_t>(state.range(0)), std::byte{0x5a});
    for (auto _ : state) {
        benchmark::DoNotOptimize(crc(data, 0));
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
}

BENCHMARK_CAPTURE(checksum, best, wire::crc32c)->Arg(64)->Arg(4 << 10)->Arg(1 << 20);
BENCHMARK_CAPTURE(checksum, portable, wire::crc32c_portable)->Arg(1 << 20);

}  // namespace
}  // namespace gpupool::benchmarks
