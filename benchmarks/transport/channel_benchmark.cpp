// The benchmarks of raw_benchmark.cpp over channels, and an append's cost for its caller.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <vector>

#include "benchmarks/transport/echo.h"
#include "protocol/wire/channel.h"

namespace gpupool::benchmarks {
namespace {

using wire::Channel;
using wire::FrameType;

// Counts received bytes.
class Counter final : public wire::Receiver {
  public:
    explicit Counter(std::size_t landing_bytes = 0) : landing_(landing_bytes) {}

    std::span<std::byte> bulk_destination(std::uint64_t, std::uint64_t offset, std::size_t bytes) override {
        return std::span(landing_).subspan(offset, bytes);
    }
    void on_bulk(std::uint64_t, std::uint64_t, std::size_t bytes) override { add(bytes); }
    void on_frame(FrameType, std::unique_ptr<std::byte[]>, std::size_t bytes) override { add(bytes); }
    void on_closed(const Error&) override {}

    void wait(std::uint64_t bytes) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return bytes_ >= bytes; });
    }

  private:
    void add(std::uint64_t bytes) {
        const std::lock_guard lock(mutex_);
        bytes_ += bytes;
        changed_.notify_one();
    }

    std::vector<std::byte> landing_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::uint64_t bytes_ = 0;
};

// Answers every frame of commands with an equally large frame of replies, on the receiving thread.
class Echo final : public wire::Receiver {
  public:
    std::span<std::byte> bulk_destination(std::uint64_t, std::uint64_t, std::size_t) override { return {}; }
    void on_bulk(std::uint64_t, std::uint64_t, std::size_t) override {}
    void on_frame(FrameType, std::unique_ptr<std::byte[]> payload, std::size_t bytes) override {
        (void)channel->append(FrameType::replies, bytes,
                              [&](std::byte* place) { std::memcpy(place, payload.get(), bytes); });
    }
    void on_closed(const Error&) override {}

    Channel* channel = nullptr;
};

Status append_record(Channel& channel, wire::Urgency urgency = wire::Urgency::soon) {
    return channel.append(
        FrameType::commands, 64, [](std::byte* place) { std::memset(place, 1, 64); }, urgency);
}

void channel_ping_pong(benchmark::State& state, Kind kind) {
    auto ends = connected_pair(kind);
    Counter counter;
    Echo echo;
    Channel here(std::move(ends.first), counter);
    Channel there(std::move(ends.second), echo);
    echo.channel = &there;
    here.start();
    there.start();
    std::uint64_t expected = 0;
    for (auto _ : state) {
        if (!append_record(here) || !here.flush()) {
            state.SkipWithError("the channel failed");
            break;
        }
        counter.wait(expected += 64);
    }
    here.close();
    there.close();
}

void channel_bulk(benchmark::State& state, Kind kind) {
    auto ends = connected_pair(kind);
    const std::vector<std::byte> data(static_cast<std::size_t>(state.range(0)));
    Counter nothing;
    Counter counter(data.size());
    Channel here(std::move(ends.first), nothing);
    Channel there(std::move(ends.second), counter);
    here.start();
    there.start();
    std::uint64_t expected = 0;
    for (auto _ : state) {
        if (!here.append_bulk(1, 0, data, [] {})) {
            state.SkipWithError("the channel failed");
            break;
        }
        counter.wait(expected += data.size());
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
    here.close();
    there.close();
}

// Two channels that all threads of one benchmark share.
struct SharedChannels {
    explicit SharedChannels(
        std::pair<std::unique_ptr<transport::Connection>, std::unique_ptr<transport::Connection>> ends)
        : here(std::move(ends.first), nothing), there(std::move(ends.second), counter) {
        here.start();
        there.start();
    }
    ~SharedChannels() {
        here.close();
        there.close();
    }
    Counter nothing, counter;
    Channel here, there;
};

// The channel's cost of a deferred call: a stream of small records, as launches are, appended by one or more threads,
// while the other side keeps up.
void channel_append(benchmark::State& state, Kind kind) {
    static std::unique_ptr<SharedChannels> shared;
    if (state.thread_index() == 0) {
        shared = std::make_unique<SharedChannels>(connected_pair(kind));
    }
    for (auto _ : state) {  // its start waits for all threads, as does its end
        if (!append_record(shared->here)) {
            state.SkipWithError("the channel failed");
            break;
        }
    }
    state.SetItemsProcessed(state.iterations());
    if (state.thread_index() == 0) {
        const auto counters = shared->here.counters();
        state.counters["frames/write"] = static_cast<double>(counters.frames_sent) /
                                         static_cast<double>(std::max<std::uint64_t>(counters.writes, 1));
        shared.reset();
    }
}

// The same when the appending thread sends each record.
void channel_send(benchmark::State& state, Kind kind) {
    SharedChannels shared(connected_pair(kind));
    for (auto _ : state) {
        if (!append_record(shared.here, wire::Urgency::now)) {
            state.SkipWithError("the channel failed");
            break;
        }
    }
    state.SetItemsProcessed(state.iterations());
}

BENCHMARK_CAPTURE(channel_ping_pong, tcp, Kind::tcp)->UseRealTime();
BENCHMARK_CAPTURE(channel_ping_pong, shm, Kind::shm)->UseRealTime();
BENCHMARK_CAPTURE(channel_ping_pong, inproc, Kind::inproc)->UseRealTime();
BENCHMARK_CAPTURE(channel_bulk, tcp, Kind::tcp)->Arg(64 << 10)->Arg(1 << 20)->Arg(64 << 20)->UseRealTime();
BENCHMARK_CAPTURE(channel_bulk, shm, Kind::shm)->Arg(64 << 10)->Arg(1 << 20)->Arg(64 << 20)->UseRealTime();
BENCHMARK_CAPTURE(channel_bulk, inproc, Kind::inproc)->Arg(64 << 10)->Arg(1 << 20)->Arg(64 << 20)->UseRealTime();
BENCHMARK_CAPTURE(channel_append, tcp, Kind::tcp)->Threads(1)->Threads(4)->UseRealTime();
BENCHMARK_CAPTURE(channel_append, shm, Kind::shm)->Threads(1)->Threads(4)->UseRealTime();
BENCHMARK_CAPTURE(channel_append, inproc, Kind::inproc)->Threads(1)->Threads(4)->UseRealTime();
BENCHMARK_CAPTURE(channel_send, tcp, Kind::tcp)->UseRealTime();
BENCHMARK_CAPTURE(channel_send, shm, Kind::shm)->UseRealTime();

}  // namespace
}  // namespace gpupool::benchmarks
