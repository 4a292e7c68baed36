// The bare transports, as the reference for channels over them.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <span>
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

// Several connections at once, each with its share of the data and a thread at either end; the upper limit for lanes.
void raw_bulk_striped(benchmark::State& state, Kind kind) {
    const auto count = static_cast<std::size_t>(state.range(0));
    const auto bytes = static_cast<std::size_t>(state.range(1));
    constexpr std::size_t kPieceBytes = 1u << 20;
    const std::vector<std::byte> data(bytes);
    std::vector<std::byte> landed(bytes);
    std::vector<Ends> lanes;
    std::vector<std::thread> threads;
    std::barrier begin(static_cast<std::ptrdiff_t>(count + 1)), end(static_cast<std::ptrdiff_t>(2 * count + 1));
    std::atomic<bool> over{false};
    std::atomic<bool> failed{false};
    const std::size_t share = bytes / count;
    for (std::size_t i = 0; i < count; ++i) {
        const Ends& lane = lanes.emplace_back(connected_pair(kind));
        const auto source = std::span(data).subspan(i * share, share);
        const auto target = std::span(landed).subspan(i * share, share);
        threads.emplace_back([&, &near = *lane.first, source] {
            for (begin.arrive_and_wait(); !over; begin.arrive_and_wait()) {
                for (std::size_t at = 0; at < source.size(); at += kPieceBytes) {
                    const ConstBuffer piece[] = {source.subspan(at, std::min(kPieceBytes, source.size() - at))};
                    failed = failed || !near.send(piece);
                }
                end.arrive_and_wait();
            }
            near.shutdown();
        });
        threads.emplace_back([&, &far = *lane.second, target] {
            while (transport::receive_exactly(far, target)) {
                end.arrive_and_wait();
            }
        });
    }
    for (auto _ : state) {
        begin.arrive_and_wait();
        end.arrive_and_wait();
    }
    over = true;
    begin.arrive_and_wait();
    for (std::thread& thread : threads) {
        thread.join();
    }
    if (failed) {
        state.SkipWithError("a connection failed");
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(share * count));
}

BENCHMARK_CAPTURE(raw_ping_pong, tcp, Kind::tcp)->UseRealTime();
BENCHMARK_CAPTURE(raw_ping_pong, shm, Kind::shm)->UseRealTime();
BENCHMARK_CAPTURE(raw_ping_pong, inproc, Kind::inproc)->UseRealTime();
BENCHMARK_CAPTURE(raw_bulk, tcp, Kind::tcp)->Arg(64 << 10)->Arg(1 << 20)->Arg(64 << 20)->UseRealTime();
BENCHMARK_CAPTURE(raw_bulk, shm, Kind::shm)->Arg(64 << 10)->Arg(1 << 20)->Arg(64 << 20)->UseRealTime();
BENCHMARK_CAPTURE(raw_bulk, inproc, Kind::inproc)->Arg(64 << 10)->Arg(1 << 20)->Arg(64 << 20)->UseRealTime();
BENCHMARK_CAPTURE(raw_bulk_striped, tcp, Kind::tcp)->ArgsProduct({{1, 2, 4, 8, 16}, {256 << 20}})->UseRealTime();

}  // namespace
}  // namespace gpupool::benchmarks
