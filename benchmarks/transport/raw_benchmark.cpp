// The transports by themselves: what a channel over them is compared with.
#include <benchmark/benchmark.h>

#include <array>
#include <thread>
#include <vector>

#include "benchmarks/transport/echo.h"

namespace gpupool::benchmarks {
namespace {

using transport::ConstBuffer;

void raw_ping_pong(benchmark::State& state, Kind kind) {
    auto [here, there] = connected_pair(kind);
    std::thread echo([&far = *there] {
        std::array<std::byte, 64> message;
        const ConstBuffer buffers[] = {message};
        while (transport::receive_exactly(far, message) && far.send(buffers)) {
        }
    });
    std::array<std::byte, 64> message{};
    const ConstBuffer buffers[] = {message};
    for (auto _ : state) {
        if (!here->send(buffers) || !transport::receive_exactly(*here, message)) {
            state.SkipWithError("the connection failed");
            break;
        }
    }
    here->shutdown();
    echo.join();
}

void raw_bulk(benchmark::State& state, Kind kind) {
    auto [here, there] = connected_pair(kind);
    const std::vector<std::byte> data(static_cast<std::size_t>(state.range(0)));
    std::thread sink([&far = *there, bytes = data.size()] {
        std::vector<std::byte> landed(bytes);
        const std::byte ready{1};
        const ConstBuffer buffers[] = {{&ready, 1}};
        while (transport::receive_exactly(far, landed) && far.send(buffers)) {
        }
    });
    const ConstBuffer buffers[] = {data};
    for (auto _ : state) {
        std::byte ready;
        if (!here->send(buffers) || !transport::receive_exactly(*here, {&ready, 1})) {
            state.SkipWithError("the connection failed");
            break;
        }
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
    here->shutdown();
    sink.join();
}

BENCHMARK_CAPTURE(raw_ping_pong, tcp, Kind::tcp)->UseRealTime();
BENCHMARK_CAPTURE(raw_ping_pong, shm, Kind::shm)->UseRealTime();
BENCHMARK_CAPTURE(raw_ping_pong, inproc, Kind::inproc)->UseRealTime();
BENCHMARK_CAPTURE(raw_bulk, tcp, Kind::tcp)->Arg(64 << 10)->Arg(1 << 20)->Arg(64 << 20)->UseRealTime();
BENCHMARK_CAPTURE(raw_bulk, shm, Kind::shm)->Arg(64 << 10)->Arg(1 << 20)->Arg(64 << 20)->UseRealTime();
BENCHMARK_CAPTURE(raw_bulk, inproc, Kind::inproc)->Arg(64 << 10)->Arg(1 << 20)->Arg(64 << 20)->UseRealTime();

}  // namespace
}  // namespace gpupool::benchmarks
